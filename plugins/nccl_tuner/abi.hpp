// The binary interface of NCCL's tuner plugins, versions 4 (NCCL 2.24 to 2.27), 5 (2.28 and 2.29) and 6 (from
// 2.30). Written here because NCCL installs no header for it. As of NCCL 2.28.9 and 2.30.7.
//
// Behaviour that NCCL does not document: an error from getCollInfo() or getChunkSize() fails the collective,
// and an error from init() fails the communicator. The plugin therefore returns success from all. The
// declared type of the cost table is wrong: the pointer is to the first element of
// float[algorithms][protocols]. NCCL caps channels to those of the communicator, except with CollNet. More
// than 127 channels overflow a field.
//
// A group of calls asks getCollInfo() for every call first. It then asks getChunkSize() for each call, in the
// same order, up to three times: for the first, the last and the other channels. The bytes are then those of
// one channel, so they do not tell which call it is. NCCL lowers the answer to what its buffers hold and
// rounds it down to whole grains. An answer below a grain divides by zero.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shingle::nccl_tuner::abi {

inline constexpr int success = 0;  // ncclResult_t

// Collectives that a tuner is asked about are 0 to 4: NcclCollective has the same numbers.

// Rows and columns of the cost table.
inline constexpr int tree = 0, ring = 1, collnet_direct = 2, collnet_chain = 3, nvls = 4, nvls_tree = 5,
                     pat = 6;
inline constexpr int algorithms = 7;
inline constexpr int ll = 0, ll128 = 1, simple = 2;
inline constexpr int protocols = 3;

inline constexpr float ignored = -1.0f;  ///< cost of an algorithm that cannot run
inline constexpr float chosen = 0.0f;    ///< cost below any other
inline constexpr int most_channels = 64;
inline constexpr std::uint32_t chunk_grain = 1920;  ///< bytes; of LL128. Simple has 512 and LL 16.

inline constexpr int log_warning = 2, log_information = 3;
inline constexpr unsigned long log_tuning = 0x40;
using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line, const char* format,
                        ...);

struct NvlinkDomains {
  int domains;
  int least_ranks, most_ranks;  ///< of a domain
};
struct Constants;  ///< of NCCL's own model; this plugin does not change them

using GetCollInfo = int (*)(void* context, int function, std::size_t bytes, int pipelined_operations,
                            float** cost_table, int table_algorithms, int table_protocols,
                            int registered_buffers, int* channels);

/// Symbol ncclTunerPlugin_v6.
struct TunerV6 {
  const char* name;
  int (*init)(void** context, std::uint64_t communicator_id, std::size_t ranks, std::size_t nodes,
              Logger logger, NvlinkDomains* domains, Constants* constants);
  GetCollInfo get_coll_info;
  int (*finalize)(void* context);
  /// Takes NCCL's own chunk size, and may change it. Null: NCCL's own holds.
  int (*get_chunk_size)(void* context, int function, std::size_t bytes, int algorithm, int protocol,
                        int channels, std::size_t* chunk_bytes);
};

/// Symbol ncclTunerPlugin_v5.
struct TunerV5 {
  const char* name;
  int (*init)(void** context, std::uint64_t communicator_id, std::size_t ranks, std::size_t nodes,
              Logger logger, NvlinkDomains* domains, Constants* constants);
  GetCollInfo get_coll_info;
  int (*finalize)(void* context);
};

/// Symbol ncclTunerPlugin_v4.
struct TunerV4 {
  const char* name;
  int (*init)(std::size_t ranks, std::size_t nodes, Logger logger, void** context);
  GetCollInfo get_coll_info;
  int (*destroy)(void* context);
};

// Pointers in this order: four, and a fifth in version 6. Enumerations are passed as int.
static_assert(sizeof(TunerV6) == 5 * sizeof(void*));
static_assert(sizeof(TunerV5) == 4 * sizeof(void*) && sizeof(TunerV4) == 4 * sizeof(void*));
static_assert(offsetof(TunerV6, init) == sizeof(void*) && offsetof(TunerV5, init) == sizeof(void*) &&
              offsetof(TunerV4, init) == sizeof(void*));
static_assert(offsetof(TunerV6, get_coll_info) == 2 * sizeof(void*) &&
              offsetof(TunerV5, get_coll_info) == 2 * sizeof(void*) &&
              offsetof(TunerV4, get_coll_info) == 2 * sizeof(void*));
static_assert(offsetof(TunerV6, finalize) == 3 * sizeof(void*) &&
              offsetof(TunerV5, finalize) == 3 * sizeof(void*) &&
              offsetof(TunerV4, destroy) == 3 * sizeof(void*));
static_assert(offsetof(TunerV6, get_chunk_size) == 4 * sizeof(void*));
static_assert(sizeof(NvlinkDomains) == 3 * sizeof(int));
static_assert(sizeof(float) == 4 && sizeof(int) == 4 && sizeof(std::size_t) == 8);

}  // namespace shingle::nccl_tuner::abi
