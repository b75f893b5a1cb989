#include "shingle/plan/rounding.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shingle/plan/shapes.hpp"

namespace shingle {
namespace {

/// Rounding before the last product.
std::string before_the_product(const Problem& p) {
  if (p.traits().chains())
    return fmt::format(
        "first products accumulate in fp32, pass the epilogue in fp32 and are rounded once to {}; ",
        name(p.dtype));
  if (p.op == Op::attention_reducescatter)
    return fmt::format("attention is computed in fp32 and rounded once to {}; ", name(p.dtype));
  return "";
}

/// What a sum over ranks passes on its way to the result: ", multiplied by 0.5" or nothing.
std::string scaled(const Problem& p) {
  return p.epilogue.scale == 1 ? "" : fmt::format(", multiplied by {}", p.epilogue.scale);
}

/// The sum of a token's products.
std::string of_choices(DType to) {
  return fmt::format(
      "; a token's products are multiplied by their weights and summed in fp32, in the order of its choices, "
      "and rounded once to {}",
      name(to));
}

std::string by_library(DType dtype, std::string_view who) {
  return fmt::format(
      "{0} the ranks' {1} values as its library does (host: in fp32, in rank order, rounded once to {1})",
      who, name(dtype));
}

/// True of every plan.
std::string by_steps() {
  return "every step computes in fp32, sums its sources in their order and rounds once to what it stores; "
         "collectives sum as their library does";
}

/// Rounding of a result that is not a sum over ranks.
std::string of_one_rank(const Problem& p) {
  const std::string_view type = name(p.dtype);
  if (p.traits().is_collective()) return "values are moved as they are";
  if (!p.traits().multiplies())
    return fmt::format("scores, weights and sums are fp32, and the result is rounded once to {}", type);
  return before_the_product(p) + fmt::format("products accumulate in fp32{} and are rounded once to {}",
                                             p.traits().chains() ? "" : ", pass the epilogue in fp32", type);
}

/// True if a collective of the workload sums the ranks' values.
bool has_library_sums(const Workload& workload) {
  return std::ranges::any_of(workload.collectives, [](const Workload::Collective& one) {
    return one.kind == CollectiveKind::allreduce || one.kind == CollectiveKind::reducescatter;
  });
}

/// Only collectives sum the ranks of a workload.
std::string result_of(const Workload& workload, const Rounding& rounding) {
  if (rounding.summing == Summing::steps) return by_steps();
  const std::string products =
      fmt::format("products accumulate in fp32, pass the epilogue in fp32 and are rounded once to {}",
                  name(workload.dtype));
  return rounding.summing == Summing::none
             ? products
             : products + "; " + by_library(workload.dtype, "a collective that reduces sums");
}

std::string result_of(const Problem& p, const Rounding& rounding) {
  const std::string_view type = name(p.dtype);
  // `to`: what a rank's part of a sum is rounded to.
  const auto products = [&](DType to) {
    if (!p.traits().multiplies()) return std::string();
    return before_the_product(p) +
           fmt::format("products accumulate in fp32 and are rounded once to {}",
                       name(p.traits().combines() ? p.dtype : to)) +
           (p.traits().combines() ? of_choices(to) : "");
  };
  switch (rounding.summing) {
    case Summing::none:
      return of_one_rank(p);
    case Summing::parts:
      if (p.traits().combines()) return products(p.dtype);
      if (p.traits().backward)
        return fmt::format(
            "parts of the gradients are computed in fp32 and rounded to {0}; they are summed in fp32 in the "
            "order of the steps, a rank's part for another rank is rounded to {0} again, and the result is "
            "rounded once to {0}",
            type);
      return fmt::format(
          "attention to a part of the keys is computed in fp32 and rounded to {0}; parts are merged by their "
          "log-sum-exp in fp32, and the result is rounded once to {0}",
          type);
    case Summing::library:
      return products(p.dtype) + (p.traits().multiplies() ? "; " : "") +
             by_library(p.dtype, "the collective sums");
    case Summing::rank_order:
      return products(rounding.staged) +
             fmt::format(
                 "{} summed in fp32 in rank order, bit-identical from run to run{}, and rounded once to {}",
                 p.traits().multiplies() ? " for their way; they are" : "ranks' values are", scaled(p),
                 name(dtype_of(p, Role::out)));
    case Summing::owner_first:
      return before_the_product(p) + fmt::format(
                                         "products accumulate in fp32, and those for other ranks are rounded "
                                         "once to {} for their way; a "
                                         "row's owner adds them to its own in fp32, in rank order, "
                                         "bit-identical from run to run, and "
                                         "rounds the sum once to {}",
                                         name(rounding.staged), name(dtype_of(p, Role::out)));
    case Summing::ring:
      return products(p.dtype) +
             fmt::format(
                 "; the sum of a row's shard starts at the rank after its owner and goes around the ring: "
                 "each rank "
                 "adds its product in fp32 and rounds to {0}, the owner after the epilogue",
                 type);
    case Summing::steps:
      return by_steps();
  }
  return "";
}

/// Statements with and without a last pass.
void add_summing(std::vector<Rounding>& all, Summing summing, DType staged) {
  for (const bool last_pass : {false, true}) all.push_back({summing, staged, last_pass});
}

void add_statements(const Problem& problem, std::vector<Rounding>& all) {
  const bool combines = problem.traits().combines();
  if (!problem.traits().reduces() && !combines) add_summing(all, Summing::none, problem.dtype);
  if (problem.op == Op::allgather_attention || problem.traits().backward ||
      (combines && !problem.traits().reduces()))
    add_summing(all, Summing::parts, problem.dtype);
  if (!problem.traits().reduces()) return;
  add_summing(all, Summing::rank_order, problem.dtype);
  if (problem.traits().multiplies() && problem.dtype != DType::f32)
    add_summing(all, Summing::rank_order, DType::f32);
  if (problem.traits().multiplies() && !combines) {
    add_summing(all, Summing::owner_first, problem.dtype);
    if (problem.dtype != DType::f32) add_summing(all, Summing::owner_first, DType::f32);
  }
  if (problem.traits().multiplies() && !combines) add_summing(all, Summing::ring, problem.dtype);
  add_summing(all, Summing::library, problem.dtype);
}

void add_statements(const Workload& workload, std::vector<Rounding>& all) {
  add_summing(all, has_library_sums(workload) ? Summing::library : Summing::none, workload.dtype);
}

}  // namespace

std::string sentence(const Work& work, const Rounding& rounding) {
  return std::visit([&](const auto& of) { return result_of(of, rounding); }, work) +
         (rounding.last_pass ? fmt::format("; a last pass works on these in fp32 and rounds once more to {}",
                                           name(dtype_of(work, Role::out)))
                             : "");
}

std::vector<Rounding> statements(const Work& work) {
  std::vector<Rounding> all;
  std::visit([&](const auto& of) { add_statements(of, all); }, work);
  all.push_back({});
  return all;
}

}  // namespace shingle
