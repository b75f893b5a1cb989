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

namespace {

/// `where`: of the two fields, for messages.
std::span<void* const> streams_of(const shingle_context& context, void* const* streams, int32_t count,
                                  std::string_view where = {}) {
  const std::size_t local = context.world->local_ranks().size();
  if (count != 0 && static_cast<std::size_t>(count) != local)
    throw InvalidArgument(
        fmt::format("{}stream_count = {} must be 0 or the {} local ranks", where, count, local));
  if (count > 0 && streams == nullptr) throw InvalidArgument(fmt::format("{}streams is null", where));
  return {streams, static_cast<std::size_t>(count)};
}

}  // namespace

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
    *op = context->context.declare(problem, c::to_declare_options(largest));
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
    const auto streams = streams_of(*context, given.streams, given.stream_count, "arguments.");
    const auto routing = c::to_routing(given.routing, context->context.largest(op));
    const auto lengths = c::to_lengths(given, m);
    if (routing && !lengths.empty())
      throw InvalidArgument("arguments have a routing and lengths: no operator takes both");
    if (!lengths.empty()) return context->context.call(op, lengths, matrices, streams);
    if (!routing) return context->context.call(op, m, matrices, streams);
    const std::int64_t most = most_rows(*routing);
    if (m != 0 && given.routing->experts != 0)
      throw InvalidArgument(fmt::format("m = {} must be 0: the routing tells the tokens", m));
    if (m != 0 && m != most)
      throw InvalidArgument(
          fmt::format("m = {} must be 0 or the {} rows of the rank that sends most", m, most));
    context->context.call(op, routing, matrices, streams);
  });
}

shingle_status shingle_context_gathered(const shingle_context* context, int32_t rank,
                                        const void** rows) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(rows, "rows");
    *rows = context->context.gathered(rank);
  });
}

shingle_status shingle_context_gathers_in_order(shingle_context* context, int32_t op, int64_t m,
                                                int32_t* in_order) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(in_order, "in_order");
    *in_order = context->context.gathers_in_order(op, m) ? 1 : 0;
  });
}

shingle_status shingle_context_extend(shingle_context* context, void* const* streams,
                                      int32_t stream_count) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    context->context.extend(streams_of(*context, streams, stream_count));
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
    *bytes = arena_bytes_needed(problem, machine_of(request.ranks, request.options), c::to_options(context),
                                c::to_declare_options(largest));
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
