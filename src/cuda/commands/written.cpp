#include "written.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "cuda/raii/check.hpp"

namespace shingle::cuda {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<const Written*> all;  // few: one for each rank of a context or executable
};

/// Never destroyed, because contexts may outlast static destructors.
Registry& registry() {
  static Registry* const made = new Registry;
  return *made;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

}  // namespace

Written::Written(std::size_t in_flight) : device_(current_device()), in_flight_(in_flight) {
  const std::lock_guard lock(registry().mutex);
  registry().all.push_back(this);
}

Written::~Written() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().all, this);
}

void Written::note(const Outputs& outputs) {
  const std::lock_guard lock(registry().mutex);
  in_flight_.add(outputs);
}

void Written::note_captured(const Outputs& outputs) {
  const std::lock_guard lock(registry().mutex);
  captured_.add(outputs);
}

bool is_written(int device, const void* first, std::size_t bytes) {
  const AddressRange asked(first, bytes);
  const std::lock_guard lock(registry().mutex);
  return std::ranges::any_of(registry().all, [&](const Written* one) {
    return one->device_ == device && (one->in_flight_.meet(asked) || one->captured_.meet(asked));
  });
}

}  // namespace shingle::cuda
