#include "plugged.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "handles.hpp"
#include "status.hpp"

using namespace shingle;
using c::guarded;
using c::require_not_null;

namespace {

/// Memory that a framework holds, also beyond its context: the addresses are not given to others.
struct Block {
  std::shared_ptr<World> world;  // outlives the memory
  DeviceBuffer memory;
};

struct Plugged {
  std::mutex mutex;
  shingle_context* context = nullptr;
  std::map<void*, Block> given;
};

/// Never destroyed: frameworks may free memory when the process ends.
Plugged& plugged() {
  static auto* const one = new Plugged;
  return *one;
}

}  // namespace

void c::unplug(const shingle_context* context) noexcept {
  Plugged& all = plugged();
  const std::lock_guard lock(all.mutex);
  if (all.context == context) all.context = nullptr;
}

shingle_status shingle_context_allocate(shingle_context* context, int32_t rank, int64_t bytes,
                                        void** memory) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(memory, "memory");
    DeviceBuffer given = context->context.allocate(rank, bytes);
    const std::lock_guard lock(context->allocating);
    *memory = given.data();
    context->allocated.emplace(*memory, std::move(given));
  });
}

shingle_status shingle_context_release(shingle_context* context, void* memory) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    const std::lock_guard lock(context->allocating);
    if (context->allocated.erase(memory) == 0)
      throw InvalidArgument(fmt::format("{} is not registered memory that the context has given", memory));
  });
}

shingle_status shingle_context_plug(shingle_context* context) noexcept {
  return guarded([&] {
    if (context != nullptr && context->world->local_ranks().size() != 1)
      throw InvalidArgument(fmt::format("the context has {} ranks in this process; it must have one",
                                        context->world->local_ranks().size()));
    const std::lock_guard lock(plugged().mutex);
    plugged().context = context;
  });
}

void* shingle_plugged_malloc(ptrdiff_t bytes, int, void*) noexcept {
  void* memory = nullptr;
  const shingle_status status = guarded([&] {
    Plugged& all = plugged();
    const std::lock_guard lock(all.mutex);
    if (all.context == nullptr) throw InvalidArgument("no context is plugged: call shingle_context_plug()");
    const auto& world = all.context->world;
    DeviceBuffer given = all.context->context.allocate(world->local_ranks().front(), bytes);
    memory = given.data();
    all.given.emplace(memory, Block{world, std::move(given)});
  });
  return status == SHINGLE_OK ? memory : nullptr;
}

void shingle_plugged_free(void* memory, ptrdiff_t, int, void*) noexcept {
  guarded([&] {
    Plugged& all = plugged();
    const std::lock_guard lock(all.mutex);
    all.given.erase(memory);
  });
}
