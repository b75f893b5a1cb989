// A collective beside products that take all workers: what each takes from the other.
#pragma once

#include <algorithm>
#include <list>
#include <optional>
#include <thread>

#include "collective_trial.hpp"

namespace shingle::bench {

struct Beside {
  double product_us = 0, product_beside_us = 0;        ///< one product, alone and beside the collective
  double collective_us = 0, collective_beside_us = 0;  ///< to the end of the last rank

  double product_slowdown() const { return product_beside_us / product_us - 1; }
  nlohmann::json json() const {
    return {{"product_us", product_us},
            {"product_beside_us", product_beside_us},
            {"product_slowdown", product_slowdown()},
            {"collective_us", collective_us},
            {"collective_beside_us", collective_beside_us}};
  }
};

/// A step without what a rank moves to itself, as if its own rows lay where they belong; none where that is
/// all.
inline std::optional<Step> to_others(const Plan& plan, const Step& step, int rank) {
  if (const auto* copy = std::get_if<Copy>(&step); copy && copy->from.rank == copy->to.rank) return {};
  const auto* call = std::get_if<Collective>(&step);
  if (!call) return step;
  Collective in_place = *call;
  if (call->kind == CollectiveKind::allgather) {
    in_place.send = call->recv;
    in_place.send.row = rank * call->send.rows, in_place.send.rows = call->send.rows;
    return in_place;
  }
  if (call->kind != CollectiveKind::alltoall) return step;
  Exchange exchange{.communicator = call->communicator, .sends = {}, .receives = {}, .resources = {}};
  const auto part = [&](Slice all, const std::vector<std::int64_t>& rows, int peer) {
    for (int before = 0; before < peer; ++before) all.row += rows[static_cast<std::size_t>(before)];
    all.rows = rows[static_cast<std::size_t>(peer)];
    return Exchange::Message{peer, all};
  };
  for (int peer = 0; peer < plan.world(); ++peer) {
    if (peer == rank) continue;
    exchange.sends.push_back(part(call->send, call->send_rows, peer));
    exchange.receives.push_back(part(call->recv, call->recv_rows, peer));
  }
  return exchange;
}

inline Plan to_others(Plan plan) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const RankPlan all = plan.ranks[rank];
    RankPlan& made = plan.ranks[rank];
    made.issue.clear();
    for (Lane& lane : made.lanes) lane.steps.clear();
    std::vector<std::size_t> next(all.lanes.size());
    for (const std::int32_t at : all.issue) {
      const auto lane = static_cast<std::size_t>(at);
      const auto step = to_others(plan, all.lanes[lane].steps[next[lane]++], static_cast<int>(rank));
      if (!step) continue;
      made.lanes[lane].steps.push_back(*step);
      made.issue.push_back(at);
    }
  }
  return plan;
}

/// The plans of one collective and of products of m×n×k, in one; matrices are random and nothing is checked.
/// No row stays with its rank, as SMs would copy it. Products beside leave one SM to kernels that wait; alone
/// they have all.
class BesideProducts {
 public:
  BesideProducts(World& world, Plan collective, std::int64_t m, std::int64_t n, std::int64_t k)
      : world_(world), collective_(to_others(std::move(collective))) {
    Problem product{.op = Op::gemm, .world = world.size(), .m = m, .n = n, .k = k};
    product.dtype = world.capabilities().native_dtypes.at(0);
    product.transpose_b = true;
    product_ = make_plan(product, world.machine(), SequentialParams{}).value();
    inputs_ = random_inputs(product, 3);
  }

  Beside measure(int repeat, double idle_us) {
    Beside found;
    found.product_us = run(false, 3, repeat, idle_us).product_us;
    found.collective_us = run(true, 0, repeat, idle_us).collective_us;
    // Products for as long as the collective takes, also where it takes half as long again.
    const int count = 2 + static_cast<int>(1.5 * found.collective_us / found.product_us);
    const Times both = run(true, count, repeat, idle_us);
    found.product_beside_us = both.product_us;
    found.collective_beside_us = both.collective_us;
    return found;
  }

 private:
  struct Times {
    double product_us = 0, collective_us = 0;
  };
  // Roles that a collective has none of.
  static constexpr Role product_a = Role::keys, product_b = Role::values;

  Plan plan(bool collective, int products) const {
    Plan plan = collective_;
    const auto first = static_cast<std::int32_t>(plan.buffers.size());
    for (Buffer buffer : product_.buffers) {
      buffer.name = "product's " + buffer.name;
      buffer.role = buffer.role == Role::a ? product_a : buffer.role == Role::b ? product_b : Role::internal;
      plan.buffers.push_back(std::move(buffer));
    }
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      RankPlan& at = plan.ranks[rank];
      if (!collective) at = {};
      if (products == 0) continue;
      Gemm gemm = std::get<Gemm>(product_.ranks[rank].lanes[0].steps[0]);
      for (Slice* slice : {&gemm.a, &gemm.b, &gemm.out.slice}) slice->buffer += first;
      if (collective) gemm.resources.most = plan.workers - 1;
      const auto count = static_cast<std::size_t>(products);
      at.issue.insert(at.issue.end(), count, static_cast<std::int32_t>(at.lanes.size()));
      at.lanes.push_back({LaneKind::compute, "products", std::vector<Step>(count, gemm)});
    }
    return plan;
  }

  std::unique_ptr<Executable> prepare(const Plan& plan, std::list<DeviceBuffer>& memory) const {
    auto executable = world_.compile(plan);
    for (const int rank : world_.local_ranks())
      for (const Buffer& buffer : plan.buffers) {
        if (buffer.role == Role::internal) continue;
        const auto bytes = static_cast<std::size_t>(buffer.bytes(rank));
        const DeviceBuffer& at = memory.emplace_back(world_.allocate(rank, bytes));
        if (buffer.role == product_a || buffer.role == product_b)
          write_input(world_, *inputs_, rank, buffer.role == product_a ? Role::a : Role::b, at.data());
        else
          world_.fill(rank, at.data(), 0x3f, bytes);
        executable->bind(rank, buffer.role, at.data());
      }
    return executable;
  }

  /// Medians over runs of the slowest rank's times. A product counts where the collective is under way for
  /// all of it, as far as there is such a one.
  Times run(bool collective, int products, int repeat, double idle_us) {
    const Plan both = plan(collective, products);
    std::list<DeviceBuffer> memory;
    const auto executable = prepare(both, memory);
    Samples product_times, collective_times;
    constexpr int warm_up = 2;
    for (int i = -warm_up; i < repeat; ++i) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(idle_us));
      const RunReport report = executable->run({.trace = true});
      Times most;
      for (const int rank : world_.local_ranks()) {
        const Times at = times_of(both, report.spans, rank, products > 0);
        most = {std::max(most.product_us, at.product_us), std::max(most.collective_us, at.collective_us)};
      }
      const auto all = world_.all_max({most.product_us, most.collective_us});
      if (i < 0) continue;
      product_times.us.push_back(all[0]);
      collective_times.us.push_back(all[1]);
    }
    return {product_times.median(), collective_times.median()};
  }

  static Times times_of(const Plan& plan, const std::vector<Span>& spans, int rank, bool products) {
    const std::size_t lanes = plan.ranks[static_cast<std::size_t>(rank)].lanes.size();
    const auto product_lane = products ? static_cast<std::int32_t>(lanes) - 1 : -1;
    Times times;
    for (const Span& span : spans)
      if (span.rank == rank && span.lane != product_lane)
        times.collective_us = std::max(times.collective_us, span.end_us);
    Samples during, first;
    for (const Span& span : spans) {
      if (span.rank != rank || span.lane != product_lane) continue;
      const bool beside = times.collective_us == 0 || span.end_us <= times.collective_us;
      if (first.us.empty() || beside) (beside ? during : first).us.push_back(span.end_us - span.begin_us);
    }
    const Samples& counted = during.us.empty() ? first : during;
    if (!counted.us.empty()) times.product_us = counted.median();
    return times;
  }

  World& world_;
  Plan collective_, product_;
  std::unique_ptr<Inputs> inputs_;
};

}  // namespace shingle::bench
