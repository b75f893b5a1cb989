// Traits of the operators, one row each.
#include <algorithm>
#include <array>

#include "base/names.hpp"
#include "shingle/base/error.hpp"
#include "shingle/plan/problem.hpp"

namespace shingle {
namespace {

using enum CollectiveKind;

constexpr std::array<OperatorTraits, 24> rows{{
    {.op = Op::gemm, .name = "gemm", .products = 1},
    {.op = Op::gemm_allreduce, .name = "gemm+allreduce", .after = allreduce, .products = 1},
    {.op = Op::gemm_reducescatter, .name = "gemm+reducescatter", .after = reducescatter, .products = 1},
    {.op = Op::allgather_gemm, .name = "allgather+gemm", .before = allgather, .products = 1},
    {.op = Op::gemm_alltoall, .name = "gemm+alltoall", .after = alltoall, .products = 1},
    {.op = Op::alltoall_gemm, .name = "alltoall+gemm", .before = alltoall, .products = 1},
    {.op = Op::alltoall_grouped_gemm,
     .name = "alltoall+grouped-gemm",
     .before = alltoall,
     .products = 1,
     .grouped = true},
    {.op = Op::grouped_gemm_alltoall,
     .name = "grouped-gemm+alltoall",
     .after = alltoall,
     .products = 1,
     .grouped = true},
    {.op = Op::moe, .name = "moe", .before = alltoall, .after = alltoall, .products = 2, .grouped = true},
    {.op = Op::allgather_grouped_gemm,
     .name = "allgather+grouped-gemm",
     .before = allgather,
     .products = 1,
     .grouped = true},
    {.op = Op::grouped_gemm_reducescatter,
     .name = "grouped-gemm+reducescatter",
     .after = reducescatter,
     .products = 1,
     .grouped = true},
    {.op = Op::moe_tp,
     .name = "moe-tp",
     .before = allgather,
     .after = reducescatter,
     .products = 2,
     .grouped = true},
    {.op = Op::grouped_gemm_allreduce,
     .name = "grouped-gemm+allreduce",
     .after = allreduce,
     .products = 1,
     .grouped = true},
    {.op = Op::moe_allreduce, .name = "moe+allreduce", .after = allreduce, .products = 2, .grouped = true},
    {.op = Op::attention_reducescatter,
     .name = "attention+reducescatter",
     .after = reducescatter,
     .products = 1,
     .attends = true},
    {.op = Op::mlp, .name = "mlp", .before = allgather, .after = reducescatter, .products = 2},
    {.op = Op::gemm_allgather_gemm, .name = "gemm+allgather+gemm", .before = allgather, .products = 2},
    {.op = Op::ulysses_attention,
     .name = "ulysses-attention",
     .before = alltoall,
     .after = alltoall,
     .attends = true},
    {.op = Op::allgather_attention, .name = "allgather+attention", .before = allgather, .attends = true},
    {.op = Op::attention_backward,
     .name = "attention-backward",
     .before = allgather,
     .attends = true,
     .backward = true},
    {.op = Op::allgather, .name = "allgather", .before = allgather},
    {.op = Op::reducescatter, .name = "reducescatter", .after = reducescatter},
    {.op = Op::allreduce, .name = "allreduce", .after = allreduce},
    {.op = Op::alltoall, .name = "alltoall", .after = alltoall},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (static_cast<std::size_t>(rows[i].op) != i) return false;
  return true;
}
static_assert(in_order(), "rows stand in the order of the enumeration");

constexpr auto names = [] {
  Names<Op, rows.size()> all{};
  for (std::size_t i = 0; i < rows.size(); ++i) all[i] = {rows[i].op, rows[i].name};
  return all;
}();

}  // namespace

const OperatorTraits& traits(Op op) {
  return rows[static_cast<std::size_t>(op)];
}
std::string_view name(Op op) {
  return traits(op).name;
}
Op parse_op(std::string_view text) {
  return parse_in(names, "operator", text);
}
std::string op_list() {
  return list_of(names);
}

}  // namespace shingle
