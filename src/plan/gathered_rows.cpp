#include "gathered_rows.hpp"

#include "shingle/plan/placement.hpp"

namespace shingle {
namespace {

/// True if row i of a product is that of row i of its A, for all i.
bool keeps_order(const Gemm& step) {
  const auto* const to = std::get_if<placement::Matrix>(&step.out.form);
  if (to == nullptr || !to->ranks.empty()) return false;
  for (std::int64_t row = 0; row < step.grid.rows;) {
    const RowRun a = step.a_rows.run_at(row, step.grid.rows - row), out = to->rows.run_at(row, a.rows);
    if (a.matrix_row != out.matrix_row) return false;
    row += out.rows;
  }
  return true;
}

/// As find_gathered_rows(), on one rank.
std::int32_t find_on(const Plan& plan, const RankPlan& rank) {
  const Gemm* only = nullptr;
  for (const Lane& lane : rank.lanes)
    for (const Step& step : lane.steps)
      if (const auto* const gemm = std::get_if<Gemm>(&step)) {
        if (only != nullptr) return -1;
        only = gemm;
      }
  if (only == nullptr || !keeps_order(*only)) return -1;
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(only->a.buffer)];
  const bool whole = only->a.row == 0 && only->a.col == 0 && only->a.rows >= plan.problem().m;
  return buffer.role == Role::internal && buffer.depth == 1 && whole ? only->a.buffer : -1;
}

}  // namespace

std::int32_t find_gathered_rows(const Plan& plan) {
  if (plan.workload() != nullptr || plan.problem().op != Op::allgather_gemm) return -1;
  const std::int32_t found = find_on(plan, plan.ranks.front());
  for (const RankPlan& rank : plan.ranks)
    if (find_on(plan, rank) != found) return -1;
  return found;
}

}  // namespace shingle
