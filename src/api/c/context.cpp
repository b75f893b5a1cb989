// Contexts of the C interface.
#include <fmt/format.h>

#include <memory>
#include <span>

#include "api/largest_routing.hpp"
#include "base/log.hpp"
#include "convert.hpp"
#include "handles.hpp"
#include "plugged.hpp"
#include "shingle/plan/json.hpp"
#include "structs.hpp"

using namespace shingle;
using c::guarded;
using c::require_not_null;

shingle_status shingle_context_create(shingle_world* world, const shingle_context_options* options,
                                      shingle_context** context) noexcept {
  return guarded([&] {
    require_not_null(world, "world");
    require_not_null(context, "context");
    *context = new shingle_context{world->world, Context(*world->world, c::to_options(options))};
  });
}

void shingle_context_destroy(shingle_context* context) noexcept {
  c::unplug(context);
  delete context;
}

shingle_status shingle_context_declare(shingle_context* context, const shingle_operator* largest,
                                       int32_t* op) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(op, "op");
    const Problem problem = c::to_problem(largest, context->world->size());
    *op = context->context.declare(problem, c::to_params(largest));
    log_line(LogLevel::info, fmt::format("operator {}: {}, arena of {} bytes", *op, describe(problem),
                                         context->context.arena_bytes()));
  });
}

shingle_status shingle_context_call(shingle_context* context, int32_t op, int64_t m,
                                    const shingle_arguments* arguments) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    const auto given = c::read_struct<shingle_arguments>(arguments, "arguments");
    const std::vector<Argument> matrices = c::to_arguments(given.matrices, given.matrix_count);
    const std::size_t local = context->world->local_ranks().size();
    const auto count = static_cast<std::size_t>(given.stream_count);
    if (given.stream_count != 0 && count != local)
      throw InvalidArgument(fmt::format("arguments.stream_count = {} must be 0 or the {} local ranks",
                                        given.stream_count, local));
    if (count > 0) require_not_null(given.streams, "arguments.streams");
    const std::span<void* const> streams(given.streams, count);
    const auto routing = c::to_routing(given.routing, context->world->size());
    if (!routing) return context->context.call(op, m, matrices, streams);
    const std::int64_t most = most_rows(*routing);
    if (m != 0 && m != most)
      throw InvalidArgument(
          fmt::format("m = {} must be 0 or the {} rows of the rank that sends most", m, most));
    context->context.call(op, routing, matrices, streams);
  });
}

shingle_status shingle_context_synchronize(shingle_context* context) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    context->context.synchronize();
  });
}

shingle_status shingle_context_arena_bytes(const shingle_context* context, int64_t* bytes) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(bytes, "bytes");
    *bytes = context->context.arena_bytes();
  });
}

shingle_status shingle_arena_bytes_needed(const shingle_world_options* world,
                                          const shingle_context_options* context,
                                          const shingle_operator* largest, int64_t* bytes) noexcept {
  return guarded([&] {
    require_not_null(bytes, "bytes");
    const c::WorldRequest request = c::to_request(world);
    const Problem problem = c::to_problem(largest, request.ranks);
    ContextOptions options = c::to_options(context);
    if (const auto params = c::to_params(largest))
      options.choose = [params](const Problem&) { return *params; };
    *bytes = arena_bytes_needed(problem, machine_of(request.ranks, request.options), std::move(options));
  });
}

shingle_status shingle_context_plan_json(shingle_context* context, int32_t op, int64_t m,
                                         const char** json) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(json, "json");
    context->json = to_json(context->context.plan(op, m), -1);
    *json = context->json.c_str();
  });
}

shingle_status shingle_context_mechanism(shingle_context* context, int32_t op, int64_t m,
                                         const char** mechanism) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(mechanism, "mechanism");
    *mechanism = name(context->context.plan(op, m).mechanism).data();  // a literal, so it ends with 0
  });
}
