// What recent calls write. A GEMM that loads its weights before the kernels ahead have ended must not read
// what they write.
#pragma once

#include <cstddef>

namespace shingle::cuda {

/// Notes that an enqueued kernel of the current device writes these bytes. Any thread may call it.
void note_written(const void* begin, std::size_t bytes);

/// True if one of the device's last 64 noted kernels writes some of these bytes. More of them cannot be under
/// way at once: each starts early only when all CTAs of the one ahead are on the device.
bool written_lately(const void* begin, std::size_t bytes);

}  // namespace shingle::cuda
