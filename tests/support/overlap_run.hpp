// An overlap of all four collectives, run on any world; each element of its results by its definition.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "shingle/api/registry.hpp"

namespace shingle::test {

/// Collectives before what they feed, and after what they send.
inline Workload sample_overlap(int world = 2) {
  return {world,
          DType::f32,
          {{"first", 24, 16, 8},
           {"second", 40, 8, 24, {0}},
           {"third", 8, 32, 16, {1}},
           {"norm", 40, 24, 1, {}, ComputationKind::pass},
           {"scores", 16, 24, 12, {2}, ComputationKind::attention}},
          {{"gather", CollectiveKind::allgather, 1000},
           {"scatter", CollectiveKind::reducescatter, 2000, {0}},
           {"sum", CollectiveKind::allreduce, 700, {0, 1}},
           {"exchange", CollectiveKind::alltoall, 1500, {2}}}};
}

/// On which overlaps are planned and simulated.
inline Machine overlap_machine(int workers) {
  Machine machine;
  machine.workers = workers;
  machine.collective_workers = 2;
  machine.tile_rows = machine.tile_cols = 16;
  machine.link = {10, 1};
  machine.memory_gbps = 100;
  machine.tiles = {{16, 16, 1, 0.1}};
  return machine;
}

/// Of a user's matrix: sums of all of these are exact.
inline float overlap_value(Role role, int rank, std::int64_t row, std::int64_t col) {
  return static_cast<float>((row * 7 + col * 5 + rank * 3 + static_cast<int>(role)) % 9 - 4);
}

inline float expected_result(const Workload& workload, const WorkloadRows& rows, Workload::Item item,
                             int rank, std::int64_t row, std::int64_t col) {
  float sum = 0;
  const auto index = static_cast<std::size_t>(item.index);
  if (!item.communicates && workload.computations[index].kind == ComputationKind::pass)
    return overlap_value(Role::payload, rank, row, col);
  if (!item.communicates) {
    const Workload::Computation& product = workload.computations[index];
    std::int64_t weight = 0;  // of the row
    for (std::int64_t end = 0; !product.groups.empty(); ++weight)
      if ((end += product.groups[static_cast<std::size_t>(weight)]) > row) break;
    for (std::int64_t k = 0; k < product.k; ++k)
      sum += overlap_value(Role::a, rank, row, k) * overlap_value(Role::b, rank, weight * product.k + k, col);
    return sum;
  }
  const std::int64_t count = rows.collectives[index].rows, part = count / workload.world;
  const auto sent = [&](std::int64_t by, std::int64_t at) {
    return overlap_value(Role::payload, static_cast<int>(by), at, col);
  };
  switch (workload.collectives[index].kind) {
    case CollectiveKind::allgather:
      return sent(row / part, row % part);
    case CollectiveKind::alltoall:
      return sent(row / part, rank * part + row % part);
    case CollectiveKind::reducescatter:
      row += rank * count;
      break;
    case CollectiveKind::allreduce:
      break;
  }
  for (int r = 0; r < workload.world; ++r) sum += sent(r, row);
  return sum;
}

/// Two epochs in this process, beside each other and in sequence, on poisoned outputs. `configs`: of the
/// collectives; empty: NCCL's own.
inline void expect_overlap_runs(World& world, const Workload& workload,
                                const std::vector<CollectiveConfig>& configs = {}) {
  const WorkloadRows rows = rows_of(workload);
  const std::int64_t m = workload.m(), n = workload.n(), k = workload.k();
  std::vector<DeviceBuffer> memory;
  const auto bound = [&](int rank, std::int64_t height, std::int64_t width, auto&& value) {
    std::vector<float> all;
    for (std::int64_t i = 0; i < height * width; ++i) all.push_back(value(i / width, i % width));
    memory.push_back(world.allocate(rank, all.size() * sizeof(float)));
    world.upload(rank, memory.back().data(), all.data(), memory.back().bytes());
    return memory.back().data();
  };
  for (const Params& params :
       {Params(ChunkedParams{.configs = configs}), Params(SequentialParams{.configs = configs})}) {
    const auto program = world.compile(make_plan(workload, world.machine(), params).value());
    std::vector<void*> out;
    for (const int r : world.local_ranks()) {
      const auto input = [&](Role role, std::int64_t height, std::int64_t width) {
        program->bind(r, role, bound(r, height, width, [&](std::int64_t row, std::int64_t col) {
                        return overlap_value(role, r, row, col);
                      }));
      };
      input(Role::a, m, k);
      input(Role::b, workload.b_rows(), n);
      input(Role::payload, rows.payload, n);
      out.push_back(bound(r, rows.out, n, [](std::int64_t, std::int64_t) { return -1e9f; }));
      program->bind(r, Role::out, out.back());
    }
    program->run({.epochs = 2, .timeout_us = 10e6});
    for (const int r : world.local_ranks()) {
      std::vector<float> found(static_cast<std::size_t>(rows.out * n));
      world.download(r, found.data(), out[static_cast<std::size_t>(r)], found.size() * sizeof(float));
      for (const Workload::Item item : workload.order()) {
        const auto i = static_cast<std::size_t>(item.index);
        const auto at = item.communicates ? rows.collectives[i] : rows.computations[i];
        const std::int64_t cols = item.communicates ? n : workload.computations[i].n;
        for (std::int64_t row = 0; row < at.rows; ++row)
          for (std::int64_t col = 0; col < cols; ++col)
            ASSERT_EQ(found[static_cast<std::size_t>((at.first + row) * n + col)],
                      expected_result(workload, rows, item, r, row, col))
                << name(mechanism_of(params)) << ", rank " << r
                << (item.communicates ? ", collective " : ", computation ") << item.index << ", row " << row
                << ", column " << col;
      }
    }
  }
}

}  // namespace shingle::test
