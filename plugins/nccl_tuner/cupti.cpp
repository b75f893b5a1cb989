#include "cupti.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "shingle/base/error.hpp"

namespace shingle::nccl_tuner {
namespace {

using cupti::KernelRecord;

static_assert(offsetof(KernelRecord, begin_ns) == 16 && offsetof(KernelRecord, end_ns) == 24);
static_assert(offsetof(KernelRecord, device) == 40 && offsetof(KernelRecord, stream) == 48);
static_assert(offsetof(KernelRecord, name) == 104);

constexpr std::size_t buffer_bytes = 256 << 10, alignment = 8;
constexpr std::size_t most_kernels = std::size_t{1} << 18;  // of iterations that nobody takes

/// CUPTI's functions.
struct Library {
  int (*enable)(int kind) = nullptr;
  int (*disable)(int kind) = nullptr;
  int (*register_callbacks)(cupti::GiveBuffer, cupti::TakeBuffer) = nullptr;
  int (*flush)(std::uint32_t flag) = nullptr;
  int (*next_record)(std::uint8_t* buffer, std::size_t valid_bytes, void** record) = nullptr;
};

/// CUPTI calls plain functions, without a context of the caller's. Its threads may do so while the process
/// ends, so this is never destroyed.
struct Process {
  std::mutex mutex;
  std::string path;
  Library library;
  std::vector<Kernel> kernels;
};
Process& process() {
  static auto& one = *new Process;
  return one;
}

void give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(alignment, buffer_bytes));
  *bytes = *buffer == nullptr ? 0 : buffer_bytes;
  *most_records = 0;  // as many as fit
}

void keep(const KernelRecord& record, std::vector<Kernel>& kernels) {
  if (record.kind != cupti::concurrent_kernel || record.begin_ns == 0 || record.end_ns <= record.begin_ns)
    return;
  if (kernels.size() == most_kernels) kernels.clear();
  const std::uint64_t stream = std::uint64_t{record.device} << 32 | record.stream;
  kernels.push_back({kind_of_kernel(record.name == nullptr ? "" : record.name), stream,
                     static_cast<double>(record.begin_ns) * 1e-3, static_cast<double>(record.end_ns) * 1e-3});
}

/// Out of memory, kernels are missing, and no times are found.
void take_buffer(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
  Process& at = process();
  try {
    const std::lock_guard guard(at.mutex);
    void* record = nullptr;
    while (valid_bytes > 0 && at.library.next_record(buffer, valid_bytes, &record) == 0)
      keep(*static_cast<const KernelRecord*>(record), at.kernels);
  } catch (const std::exception&) {
  }
  std::free(buffer);
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) throw Error(fmt::format("SHINGLE_TUNER_CUPTI: {}", ::dlerror()));
}

/// Opens CUPTI for good. Its threads may call back until the process ends, so the plugin stays loaded too.
void open(Process& at, const std::string& path) {
  if (at.path == path) return;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw Error(fmt::format("SHINGLE_TUNER_CUPTI: {}", ::dlerror()));
  Library found;
  find(library, "cuptiActivityEnable", found.enable);
  find(library, "cuptiActivityDisable", found.disable);
  find(library, "cuptiActivityRegisterCallbacks", found.register_callbacks);
  find(library, "cuptiActivityFlushAll", found.flush);
  find(library, "cuptiActivityGetNextRecord", found.next_record);
  Dl_info own{};
  if (::dladdr(reinterpret_cast<void*>(&take_buffer), &own) != 0)
    ::dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  at.library = found;
  at.path = path;
}

class Recorder final : public KernelRecorder {
 public:
  explicit Recorder(const std::string& path) {
    const std::lock_guard guard(process().mutex);
    open(process(), path);
  }
  ~Recorder() override { stop(); }

  void start() override {
    if (running_) return;
    const Library& library = process().library;
    running_ = library.register_callbacks(give_buffer, take_buffer) == 0 &&
               library.enable(cupti::concurrent_kernel) == 0;
    if (!running_) throw Error("CUPTI records no kernels, perhaps because a profiler runs");
  }
  void stop() override {
    if (!running_) return;
    running_ = false;
    process().library.disable(cupti::concurrent_kernel);
    take();
  }
  std::vector<Kernel> take() override {
    process().library.flush(cupti::forced);  // calls take_buffer()
    const std::lock_guard guard(process().mutex);
    return std::exchange(process().kernels, {});
  }

 private:
  bool running_ = false;
};

}  // namespace

std::unique_ptr<KernelRecorder> make_cupti_recorder(const std::string& library) {
  return std::make_unique<Recorder>(library);
}

}  // namespace shingle::nccl_tuner
