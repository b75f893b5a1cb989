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

struct Plugged {
  std::mutex mutex;
  shingle_context* context = nullptr;
  std::map<void*, shingle_context*> given;  // memory, with the context that it is of
};

/// Never destroyed: frameworks may free memory when the process ends.
Plugged& plugged() {
  static auto* const one = new Plugged;
  return *one;
}

void* allocate(shingle_context& context, int rank, std::int64_t bytes) {
  DeviceBuffer memory = context.context.allocate(rank, bytes);
  const std::lock_guard lock(context.allocating);
  void* const at = memory.data();
  context.allocated.emplace(at, std::move(memory));
  return at;
}

void release(shingle_context& context, void* memory) {
  const std::lock_guard lock(context.allocating);
  if (context.allocated.erase(memory) == 0)
    throw InvalidArgument(fmt::format("{} is not registered memory that the context has given", memory));
}

}  // namespace

void c::unplug(const shingle_context* context) noexcept {
  Plugged& all = plugged();
  const std::lock_guard lock(all.mutex);
  if (all.context == context) all.context = nullptr;
  std::erase_if(all.given, [&](const auto& one) { return one.second == context; });
}

shingle_status shingle_context_allocate(shingle_context* context, int32_t rank, int64_t bytes,
                                        void** memory) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    require_not_null(memory, "memory");
    *memory = allocate(*context, rank, bytes);
  });
}

shingle_status shingle_context_release(shingle_context* context, void* memory) noexcept {
  return guarded([&] {
    require_not_null(context, "context");
    release(*context, memory);
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
    memory = allocate(*all.context, all.context->world->local_ranks().front(), bytes);
    all.given.emplace(memory, all.context);
  });
  return status == SHINGLE_OK ? memory : nullptr;
}

void shingle_plugged_free(void* memory, ptrdiff_t, int, void*) noexcept {
  guarded([&] {
    Plugged& all = plugged();
    const std::lock_guard lock(all.mutex);
    const auto found = all.given.find(memory);
    if (found == all.given.end()) return;
    release(*found->second, memory);
    all.given.erase(found);
  });
}
