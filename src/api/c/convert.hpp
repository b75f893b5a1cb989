// Structs of the C interface as those of the C++ one. All throw InvalidArgument that names the wrong field.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shingle/api/context.hpp"
#include "shingle/shingle.h"

namespace shingle::c {

/// A world to make. The options refer to the caller's texts, and to the communicators.
struct WorldRequest {
  int ranks = 0;
  WorldOptions options{};
  std::vector<ncclComm*> communicators{};
};
WorldRequest to_request(const shingle_world_options* given);

ContextOptions to_options(const shingle_context_options* given);

/// An operator that routes rows gets the routing of its largest m.
Problem to_problem(const shingle_operator* given, int world);

DeclareOptions to_declare_options(const shingle_operator* given);

/// The routing of a call of the operator; null if the call has none.
std::shared_ptr<const Routing> to_routing(const shingle_routing* given, const Problem& largest);

/// Tokens of the sequences of an attention, in the caller's memory; empty if the call has none.
std::span<const std::int64_t> to_lengths(const shingle_arguments& given, std::int64_t m);

std::vector<Argument> to_arguments(const shingle_matrix* given, std::int32_t count);

}  // namespace shingle::c
