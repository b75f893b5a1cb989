// Worlds of the C interface, and what concerns no world.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/log.hpp"
#include "convert.hpp"
#include "handles.hpp"
#include "shingle/host/host.hpp"
#include "shingle/version.hpp"
#include "status.hpp"
#ifdef SHINGLE_WITH_CUDA
#include "shingle/cuda/cuda.hpp"
#endif

using namespace shingle;
using c::guarded;
using c::require_not_null;

const char* shingle_version(void) noexcept {
  return SHINGLE_VERSION;
}

const char* shingle_commit(void) noexcept {
  return commit();
}

shingle_status shingle_info(const char** text) noexcept {
  return guarded([&] {
    require_not_null(text, "text");
    thread_local std::string lines;
    lines = fmt::format("shingle {} ({})\n{}", SHINGLE_VERSION, commit(), describe(host_info()));
#ifdef SHINGLE_WITH_CUDA
    lines += describe(cuda_info());
#endif
    for (const BackendEntry& entry : backends())
      lines += fmt::format("backend {}: {}\n", entry.name, entry.summary);
    for (const PlannerEntry& entry : planners())
      lines += fmt::format("mechanism {}: {}\n", name(entry.mechanism), entry.summary);
    *text = lines.c_str();
  });
}

void shingle_set_log(shingle_log_function log, void* user) noexcept {
  guarded([&] {
    set_log_sink(log == nullptr ? LogSink{} : [=](LogLevel level, const std::string& line) {
      log(user, static_cast<std::int32_t>(level), line.c_str());
    });
  });
}

shingle_status shingle_world_create(const shingle_world_options* options, shingle_world** world) noexcept {
  return guarded([&] {
    require_not_null(world, "world");
    const c::WorldRequest request = c::to_request(options);
    *world = new shingle_world{make_world(request.ranks, request.options)};
  });
}

void shingle_world_destroy(shingle_world* world) noexcept {
  delete world;
}

shingle_status shingle_world_size(const shingle_world* world, int32_t* size) noexcept {
  return guarded([&] {
    require_not_null(world, "world");
    require_not_null(size, "size");
    *size = world->world->size();
  });
}

shingle_status shingle_world_local_ranks(const shingle_world* world, int32_t* ranks,
                                         int32_t* count) noexcept {
  return guarded([&] {
    require_not_null(world, "world");
    require_not_null(count, "count");
    const std::vector<int> local = world->world->local_ranks();
    const auto needed = static_cast<std::int32_t>(local.size());
    if (ranks != nullptr && *count < needed)
      throw InvalidArgument(fmt::format("count = {} is less than the {} local ranks", *count, needed));
    if (ranks != nullptr) std::ranges::copy(local, ranks);
    *count = needed;
  });
}
