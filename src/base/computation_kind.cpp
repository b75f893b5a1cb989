#include "shingle/base/computation_kind.hpp"

#include "base/names.hpp"

namespace shingle {
namespace {

constexpr Names<ComputationKind, computation_kinds> computations{{{ComputationKind::product, "product"},
                                                                  {ComputationKind::attention, "attention"},
                                                                  {ComputationKind::pass, "pass"}}};

}  // namespace

std::string_view name(ComputationKind kind) {
  return name_in(computations, kind);
}
ComputationKind parse_computation_kind(std::string_view text) {
  return parse_in(computations, "computation", text);
}

}  // namespace shingle
