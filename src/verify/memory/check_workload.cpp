// Accesses of a workload's user between two epochs: provides the inputs and checks the results.
#include "check.hpp"

namespace shingle {

void MemoryCheck::workload_user(const Workload& workload, const Segment& s, std::int32_t index) {
  if (s.epoch > 0) check_results(workload, s, index);
  overwrite_all(s, index);
  const std::uint64_t own = std::uint64_t{1} << s.rank;
  const auto hold = [&](Role role, Content content) {
    content.epoch = s.epoch;
    memory_.hold(place(whole(plan_, find_buffer(plan_, role), s.rank), s.epoch), content);
  };
  hold(Role::a, {Content::Of::a, 0, 0, 0, 0, own});
  hold(Role::b, {Content::Of::b, 0, 0, 0, 0, own});
  hold(Role::payload, {Content::Of::payload, 0, 0, 0, 0, own, 0, values_.input(s.rank)});
}

/// Requires the result of each computation and collective at its place in the output.
void MemoryCheck::check_results(const Workload& workload, const Segment& s, std::int32_t index) {
  const Slice all = whole(plan_, find_buffer(plan_, Role::out), s.rank);
  const WorkloadRows rows = rows_of(workload);
  const auto own = std::uint64_t{1} << s.rank;
  const auto holds = [&](std::int64_t first, std::int64_t count, std::int64_t cols, Content expected) {
    Place at = place(all, s.epoch - 1);
    at.rect = {first, count, 0, cols};
    expected.epoch = s.epoch - 1;
    expected.row -= first;
    expect(at, index, expected);
  };
  for (std::size_t i = 0; i < rows.computations.size(); ++i) {
    const Workload::Computation& item = workload.computations[i];
    const auto [first, count] = rows.computations[i];
    if (item.kind == ComputationKind::pass) {
      holds(first, count, item.n, {Content::Of::payload, 0, 0, 0, 0, own, 0, values_.input(s.rank)});
      continue;
    }
    Content product{Content::Of::c, 0, 0, 0, 0, own, static_cast<std::int32_t>(item.k)};
    for (const std::int64_t some : item.groups.empty() ? std::vector{count} : item.groups) {
      if (some > 0) holds(first + product.row, some, item.n, product);
      product.row += some, ++product.weight;
    }
  }
  for (std::size_t j = 0; j < rows.collectives.size(); ++j) {
    const auto [first, count] = rows.collectives[j];
    const CollectiveKind kind = workload.collectives[j].kind;
    if (kind == CollectiveKind::allreduce || kind == CollectiveKind::reducescatter) {
      const std::int64_t row = kind == CollectiveKind::reducescatter ? s.rank * count : 0;
      holds(first, count, all.cols, {Content::Of::payload, 0, 0, row, 0, everyone_});
      continue;
    }
    const std::int64_t part = count / workload.world;
    for (int r = 0; r < workload.world; ++r)
      holds(first + r * part, part, all.cols,
            {Content::Of::payload, 0, 0, kind == CollectiveKind::alltoall ? s.rank * part : 0, 0,
             std::uint64_t{1} << r});
  }
}

}  // namespace shingle
