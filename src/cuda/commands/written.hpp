// What recent calls write. A GEMM that loads its weights before the kernels ahead have ended must not read
// what they write.
#pragma once

#include <cstddef>

namespace shingle::cuda {

/// Outputs that a device remembers, over all streams. A context has at most 64 calls in flight.
inline constexpr std::size_t remembered_writes = 512;

/// Notes that a call enqueued on the current device writes these bytes. Any thread may call it.
void note_written(const void* begin, std::size_t bytes);

/// True if one of the remembered outputs has some of these bytes.
bool written_lately(const void* begin, std::size_t bytes);

}  // namespace shingle::cuda
