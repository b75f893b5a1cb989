// Kernels that ran on this process's GPUs, from CUPTI, which is part of CUDA. The plugin opens CUPTI's
// library at run time, so it needs neither CUDA nor its headers.
#pragma once

#include <memory>
#include <string>

#include "kernels.hpp"

namespace shingle::nccl_tuner {

namespace cupti {

// What the plugin uses of CUPTI's activity interface. Its functions return 0 on success.
inline constexpr int concurrent_kernel = 10;  // CUpti_ActivityKind
inline constexpr std::uint32_t forced = 1;    // CUpti_ActivityFlag: also buffers that are not complete

/// The first fields of a kernel's record. They are the same in CUpti_ActivityKernel4 to 10, of CUDA 9 to 13.
struct KernelRecord {
  std::int32_t kind;
  std::uint32_t unused_1[3];
  std::uint64_t begin_ns, end_ns;  ///< 0: unknown
  std::uint64_t unused_2;
  std::uint32_t device, context, stream;
  std::uint32_t unused_3[13];
  const char* name;  ///< mangled
};

using GiveBuffer = void (*)(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records);
using TakeBuffer = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t bytes,
                            std::size_t valid_bytes);

}  // namespace cupti

/// The process's recorder. Recorders that are started at once share the kernels: the first to take() gets
/// them. Throws Error if the library cannot be opened or lacks a function. `library`: "libcupti.so.13", or a
/// path.
///
/// A program's own profiler and this recorder cannot run at the same time: CUPTI has one owner of buffers.
std::unique_ptr<KernelRecorder> make_cupti_recorder(const std::string& library);

}  // namespace shingle::nccl_tuner
