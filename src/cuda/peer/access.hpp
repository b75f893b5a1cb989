// Peer access: devices that load, store and add in each other's memory.
#pragma once

#include <string>
#include <vector>

namespace shingle::cuda {

/// Why devices may not use each other's memory: the user forbids it, in the variable that NCCL obeys. Empty
/// if they may.
std::string forbidden_peer_access();

/// Why two of these devices of this process lack peer access ("GPU 0 has no peer access to GPU 3"); empty if
/// all have it, and are allowed it. Enables nothing.
std::string no_peer_access(const std::vector<int>& devices);

/// Gives every device access to the memory of all others, until the process ends. Throws CudaError.
void enable_peer_access(const std::vector<int>& devices);

/// True if peer access and inter-process handles cover this memory. They cover memory from cudaMalloc, but
/// not memory pools, mapped virtual memory or host memory.
bool shared_with_peers(const void* memory);

}  // namespace shingle::cuda
