// Which plan serves the calls of an operator of a context.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shingle/api/context.hpp"
#include "shingle/planner/planner.hpp"

namespace shingle {

/// True if each call of the problem brings a routing.
inline bool needs_routing(const Problem& problem) {
  return problem.traits().routes() && !problem.has_slots();
}

/// A copy of the machine with so many workers; 0: all. Throws InvalidArgument if `owner` (machine, context)
/// has fewer.
Machine with_workers(Machine machine, int workers, std::string_view owner);

/// An operator as it was declared.
struct Declared {
  Problem largest{};  ///< with the largest m
  DeclareOptions options{};
  Machine machine{};                        ///< with the workers of its calls
  std::map<std::int64_t, Params> chosen{};  ///< by power of two of m
};

/// Mechanisms, params and plans of calls: the same on all ranks, by operator and problem alone.
class CallPlans {
 public:
  /// `unregistered`: peers cannot access the matrices of calls. All must outlive this object.
  CallPlans(const World& world, const ContextOptions& options, bool unregistered)
      : world_(world), options_(options), unregistered_(unregistered) {}

  /// The plan of the chosen params; nothing if these do not serve this m.
  Result<Plan> chosen(Declared& op, const Problem& problem) const;
  Plan sequential(const Declared& op, const Problem& problem) const;
  /// Plans of all kinds that calls may need: of `largest`, and of some with fewer rows.
  std::vector<Plan> typical(Declared& op, const Problem& largest) const;
  /// Arena that the sequential plans of all calls need.
  std::int64_t sequential_bytes(const Declared& op, const Problem& largest) const;

 private:
  Params params_for(Declared& op, const Problem& problem) const;
  Params suited(Params params) const { return unregistered_ ? with_unregistered(std::move(params)) : params; }
  std::string why_unfit(const Plan& plan) const;

  const World& world_;
  const ContextOptions& options_;
  bool unregistered_;
};

}  // namespace shingle
