#include "shingle/plan/workload.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle {
namespace {

constexpr std::size_t max_items = 1 << 12;
constexpr std::int64_t max_bytes = std::int64_t{1} << 40;

/// True if all items that `after` names are done, where the first `done` items are done.
bool may_run(const std::vector<std::int32_t>& after, std::size_t done) {
  for (const std::int32_t index : after)
    if (static_cast<std::size_t>(index) >= done) return false;
  return true;
}

void check_after(const std::vector<std::int32_t>& after, std::size_t count, std::string_view item,
                 std::string_view others) {
  for (const std::int32_t index : after)
    if (index < 0 || static_cast<std::size_t>(index) >= count)
      throw InvalidArgument(
          fmt::format("{} awaits index {}, but there are {} {}", item, index, count, others));
}

void check_count(std::size_t count, std::string_view what) {
  if (count < 1 || count > max_items)
    throw InvalidArgument(fmt::format("an overlap has {} {}; expected 1 to {}", count, what, max_items));
}

std::int64_t largest(const std::vector<Workload::Computation>& items,
                     std::int64_t Workload::Computation::*size) {
  std::int64_t most = 0;
  for (const Workload::Computation& item : items) most = larger(most, item.*size);
  return most;
}

void check_groups(const Workload::Computation& item) {
  if (item.groups.empty()) return;
  if (item.kind != ComputationKind::product)
    throw InvalidArgument(
        fmt::format("computation {} has groups, but only products have weights", item.name));
  if (std::ranges::any_of(item.groups, [&](std::int64_t rows) { return rows < 0 || rows > item.m; }) ||
      std::accumulate(item.groups.begin(), item.groups.end(), std::int64_t{0}) != item.m)
    throw InvalidArgument(fmt::format("computation {}: groups of {} rows are not m = {} rows together",
                                      item.name, fmt::join(item.groups, ", "), item.m));
}

}  // namespace

std::vector<Workload::Item> Workload::order() const {
  std::vector<Item> items;
  std::size_t computed = 0, sent = 0;
  while (computed < computations.size() || sent < collectives.size()) {
    if (sent < collectives.size() && may_run(collectives[sent].after, computed)) {
      items.push_back({true, static_cast<std::int32_t>(sent++)});
    } else if (computed < computations.size() && may_run(computations[computed].after, sent)) {
      items.push_back({false, static_cast<std::int32_t>(computed++)});
    } else {
      throw InvalidArgument(fmt::format("computation {} and collective {} wait for each other",
                                        computed < computations.size() ? computations[computed].name : "-",
                                        sent < collectives.size() ? collectives[sent].name : "-"));
    }
  }
  return items;
}

std::int64_t Workload::m() const {
  return largest(computations, &Computation::m);
}
std::int64_t Workload::n() const {
  return largest(computations, &Computation::n);
}
std::int64_t Workload::k() const {
  return largest(computations, &Computation::k);
}

std::int64_t Workload::b_rows() const {
  std::int64_t most = 0;
  for (const Computation& item : computations) most = larger(most, item.weights() * item.k);
  return most;
}

void Workload::validate() const {
  if (world < 1 || world > max_planned_world)
    throw InvalidArgument(fmt::format("world = {} is outside [1, {}]", world, max_planned_world));
  if (!is_floating(dtype))
    throw InvalidArgument(fmt::format("dtype = {} is not f32, bf16 or f16", name(dtype)));
  check_count(computations.size(), "computations");
  check_count(collectives.size(), "collectives");
  for (const Computation& item : computations) {
    for (const std::int64_t size : {item.m, item.n, item.k})
      if (size < 1 || size > max_extent)
        throw InvalidArgument(fmt::format("computation {} is {}x{}x{}: a size is outside [1, {}]", item.name,
                                          item.m, item.n, item.k, max_extent));
    if (item.kind == ComputationKind::pass && item.k != 1)
      throw InvalidArgument(
          fmt::format("computation {} is a pass with k = {}; expected 1", item.name, item.k));
    check_groups(item);
    check_after(item.after, collectives.size(), item.name, "collectives");
  }
  for (const Collective& item : collectives) {
    if (item.bytes < 1 || item.bytes > max_bytes)
      throw InvalidArgument(
          fmt::format("collective {}: bytes = {} is outside [1, {}]", item.name, item.bytes, max_bytes));
    check_after(item.after, computations.size(), item.name, "computations");
  }
  order();
  if (b_rows() > max_extent)
    throw InvalidArgument(
        fmt::format("the weights of a computation have {} rows together; at most {}", b_rows(), max_extent));
  const WorkloadRows rows = rows_of(*this);
  if (larger(rows.out, rows.payload) > max_extent)
    throw InvalidArgument(fmt::format("the results have {} rows together; at most {}", rows.out, max_extent));
}

WorkloadRows rows_of(const Workload& workload) {
  WorkloadRows at;
  for (const Workload::Computation& item : workload.computations) {
    at.computations.push_back({at.out, item.m});
    at.out += item.m;
    if (item.kind == ComputationKind::pass) at.payload = larger(at.payload, item.m);
  }
  const std::int64_t row_bytes = workload.n() * static_cast<std::int64_t>(size_bytes(workload.dtype));
  for (const Workload::Collective& item : workload.collectives) {
    const bool reduces = item.kind == CollectiveKind::allreduce;
    const std::int64_t parts = reduces ? 1 : workload.world;
    const std::int64_t part = ceil_div(item.bytes, parts * row_bytes), all = parts * part;
    const bool gathers = item.kind == CollectiveKind::allgather;
    const bool scatters = item.kind == CollectiveKind::reducescatter;
    at.sent.push_back(gathers ? part : all);
    at.payload = larger(at.payload, at.sent.back());
    at.collectives.push_back({at.out, scatters ? part : all});
    at.out += at.collectives.back().rows;
  }
  return at;
}

std::string describe(const Workload& workload) {
  const auto counted = [](std::size_t count, std::string_view what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  return fmt::format("overlap of {} and {}, {}, {}", counted(workload.computations.size(), "computation"),
                     counted(workload.collectives.size(), "collective"), name(workload.dtype),
                     counted(static_cast<std::size_t>(workload.world), "rank"));
}

}  // namespace shingle
