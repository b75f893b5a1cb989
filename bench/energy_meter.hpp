// Energy that GPUs have taken, by their boards' counters (NVML, where the driver brings it).
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#ifdef SHINGLE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace shingle::bench {

class EnergyMeter {
 public:
  /// Of the first `devices` devices of this process.
  explicit EnergyMeter(int devices)
      : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW), close), missing_(open(devices)) {}

  /// Why there are no figures; empty where there are.
  const std::string& missing() const { return missing_; }

  /// Taken so far by all devices; only differences mean something.
  double joules() {
    unsigned long long sum_mj = 0;
    for (const Device device : devices_) {
      unsigned long long mj = 0;
      if (const int code = energy_(device, &mj)) {
        missing_ = fmt::format("a device has no counter of energy: NVML says {}", code);
        return 0;
      }
      sum_mj += mj;
    }
    return static_cast<double>(sum_mj) * 1e-3;
  }

 private:
  using Device = struct nvmlDevice_st*;

  static void close(void* library) {
    if (library != nullptr) dlclose(library);
  }
  /// Why that fails; empty where it does not.
  std::string open(int devices) {
    if (!library_) return "libnvidia-ml.so.1 is not here";
    const auto init = find<int()>("nvmlInit_v2");
    const auto by_bus = find<int(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
    energy_ = find<int(Device, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
    if (!init || !by_bus || !energy_) return "libnvidia-ml.so.1 lacks a function";
    if (const int code = init()) return fmt::format("nvmlInit_v2 says {}", code);
    for (int device = 0; device < devices; ++device) {
      Device handle = nullptr;
      if (const int code = by_bus(bus_of(device).c_str(), &handle))
        return fmt::format("NVML does not find device {}: it says {}", device, code);
      devices_.push_back(handle);
    }
    return {};
  }
  static std::string bus_of([[maybe_unused]] int device) {
    char text[32] = "";
#ifdef SHINGLE_WITH_CUDA
    cudaDeviceGetPCIBusId(text, sizeof text, device);
#endif
    return text;
  }
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(library_.get(), name));
  }
  std::unique_ptr<void, void (*)(void*)> library_;
  int (*energy_)(Device, unsigned long long*) = nullptr;
  std::vector<Device> devices_;
  std::string missing_;
};

}  // namespace shingle::bench
