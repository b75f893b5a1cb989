// Devices that load from, store to and count in each other's memory.
#pragma once

#include <string>
#include <vector>

namespace shingle::cuda {

/// Why not all of these devices of this process can reach each other's memory: "GPU 0 has no peer access to
/// GPU 3"; empty: they can. Enables nothing.
std::string no_peer_access(const std::vector<int>& devices);

/// Lets each of the devices reach the memory of all others until the process ends. Throws CudaError.
void enable_peer_access(const std::vector<int>& devices);

/// Whether what other devices and processes are let into covers this memory: that of cudaMalloc, but not that
/// of pools, of virtual memory that somebody mapped, or of the host.
bool shared_with_peers(const void* memory);

}  // namespace shingle::cuda
