// NCCL's entry points: three tables of functions that let neither exceptions nor errors out.
#include <algorithm>

#include "abi.hpp"
#include "tuner.hpp"

namespace shingle::nccl_tuner {
namespace {

/// Null if there is no memory for a tuner: NCCL's choice then holds.
Tuner* make_tuner(const Communicator& communicator, abi::Logger logger) noexcept try {
  return new Tuner(communicator, Log(logger));
} catch (...) {
  return nullptr;
}

template <int interface>
int init(void** context, std::uint64_t communicator_id, std::size_t ranks, std::size_t nodes,
         abi::Logger logger, abi::NvlinkDomains*, abi::Constants*) {
  *context = make_tuner({communicator_id, ranks, nodes, interface}, logger);
  return abi::success;
}

int init_v4(std::size_t ranks, std::size_t nodes, abi::Logger logger, void** context) {
  *context = make_tuner({std::nullopt, ranks, nodes, 4}, logger);
  return abi::success;
}

int get_coll_info(void* context, int function, std::size_t bytes, int operations, float** costs,
                  int algorithms, int protocols, int /*registered_buffers*/, int* channels) {
  if (context == nullptr || costs == nullptr || channels == nullptr) return abi::success;
  static_cast<Tuner*>(context)->on_call(
      {.collective = static_cast<std::uint8_t>(std::clamp(function, 0, 255)),
       .bytes = bytes,
       .operations = static_cast<std::uint32_t>(operations)},
      {reinterpret_cast<float*>(costs), algorithms, protocols}, channels);
  return abi::success;
}

int get_chunk_size(void* context, int function, std::size_t /*bytes*/, int algorithm, int protocol,
                   int /*channels*/, std::size_t* chunk_bytes) {
  if (context == nullptr || chunk_bytes == nullptr) return abi::success;
  const auto bytes = static_cast<Tuner*>(context)->chunk_bytes(function, algorithm, protocol);
  if (bytes > 0) *chunk_bytes = bytes;
  return abi::success;
}

int finalize(void* context) {
  delete static_cast<Tuner*>(context);
  return abi::success;
}

}  // namespace
}  // namespace shingle::nccl_tuner

// NCCL looks these names up.
extern "C" {
using namespace shingle::nccl_tuner;
[[gnu::visibility("default")]] abi::TunerV6 ncclTunerPlugin_v6{"Shingle", init<6>, get_coll_info, finalize,
                                                               get_chunk_size};
[[gnu::visibility("default")]] abi::TunerV5 ncclTunerPlugin_v5{"Shingle", init<5>, get_coll_info, finalize};
[[gnu::visibility("default")]] abi::TunerV4 ncclTunerPlugin_v4{"Shingle", init_v4, get_coll_info, finalize};
}
