// Deliveries: rows that ranks store into each other's flagged memory, and passes over what arrives there.
//
// All of it is memory that plans call flagged (shingle/plan/plan.hpp), of one plan or of a context.
//
// A word of flagged memory that is `flag` has not arrived. `flag` is a pair of numbers that a sender replaces
// (-0.0 by 0.0), so every number can travel, and data need neither counters nor fences. Flagged memory has
// three copies, which deliveries take in turn. In turn t the kernels of a rank
//
//   1. store into copy t mod 3 of other ranks,
//   2. set to `flag` what arrived in their own copy (t - 1) mod 3, which turn t - 1 has read,
//   3. read their own copy t mod 3.
//
// Peers store into copy (t - 1) mod 3 again in turn t + 2. They began it after turn t + 1, in which they got
// this rank's greeting, which it sent after its turn t. So the copy was clear by then. The turn is counted on
// the device, so graphs may replay deliveries.
#pragma once

#include <cuda_runtime_api.h>

#include "elementwise.hpp"

namespace shingle::cuda {

inline constexpr int flagged_world = 16;    ///< ranks, at most
inline constexpr int most_deliveries = 16;  ///< sends, and passes, of a kernel
inline constexpr int most_row_chunks = 16;  ///< of 16 bytes, that a thread holds
inline constexpr std::int64_t greeting_bytes = 16;
/// Two bf16 or f16 numbers 0.0 and -0.0, or one f32 number -0.0.
inline constexpr std::uint32_t flag = 0x80000000u;

/// Turns are counted modulo this multiple of the three copies. Greetings hold twice a turn in 32 bits.
inline constexpr std::uint32_t turns = 3u << 29;

/// What a delivery may receive of a copy: chunks [0, used) of 16 bytes but [hole, hole_end), where the rank's
/// own rows would be.
struct FlaggedExtent {
  std::uint32_t used = 0;
  std::uint32_t hole = 0, hole_end = 0;
};

/// Turns of a rank's deliveries, in its device memory.
struct FlaggedState {
  std::uint32_t turn = 0;
  std::uint32_t ended = 0;  ///< CTAs of the running kernel that have ended
  FlaggedExtent last;       ///< of the last delivery
};

/// The flagged memory of all ranks. A copy begins with a greeting of each rank.
struct FlaggedPlace {
  char* copies[flagged_world] = {};  ///< by rank: its first copy, as this rank accesses it
  std::int64_t copy_bytes = 0;
  FlaggedState* state = nullptr;
  std::int32_t world = 1;
  std::int32_t rank = 0;
};

/// Dense rows. `flagged`: `at` is a distance from the begin of the rank's own copy, and the rows are of rank
/// `source`.
struct DeliveredRows {
  char* at = nullptr;
  std::uint8_t matrix = 0;  ///< index of Shifts
  bool flagged = false;
  std::uint8_t source = 0;
};

/// Rows that go to each of some ranks, at the same distance from the begin of their copy.
struct SentRows {
  DeliveredRows from;
  std::int64_t to = 0;
  std::uint32_t ranks = 0;  ///< bit r: rank r
  std::int32_t rows = 0;
};

/// Rows of a product that its kernel stores, as tiles are complete, at the same distance from the begin of
/// the copies of some ranks.
struct ProductSend {
  std::int64_t to = 0;
  std::int32_t first = 0;  ///< row of the product
  std::int32_t rows = 0;
  std::uint32_t ranks = 0;  ///< bit r: rank r
};

/// What the kernel of a product sends instead of the delivery behind it, the rank's own rows included. The
/// product is then stored nowhere else. The kernels before it in the stream must have ended.
struct ProductSends {
  FlaggedPlace flagged;
  std::int32_t count = 0;  ///< 0: the kernel stores its product
  ProductSend sends[most_deliveries + 1];
};

/// A pass over rows: sums `count` sources from `first` on, in their order.
struct TakenRows {
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t rows = 0;
  DeliveredRows to;
  DeliveredRows residual;
  DeliveredRows sum;
};

struct DeliveryArgs {
  FlaggedPlace flagged;
  Element type = Element::bf16;
  std::int32_t cols = 0;  ///< of all rows; a row is a multiple of 16 bytes
  FlaggedExtent extent;
  std::uint32_t plan = 0;  ///< hash of the plan, and its m: peers compare them
  std::uint32_t m = 0;
  std::int32_t sent = 0;  ///< number of sends
  std::int32_t taken = 0;
  SentRows sends[most_deliveries];
  TakenRows takes[most_deliveries];
  DeliveredRows sources[most_deliveries];
  Activate activate = Activate::none;  ///< not swiglu
  DeliveredRows bias;                  ///< null: none
  bool norm = false;
  float epsilon = 0;
  DeliveredRows norm_weight;
  bool has_residual = false;
  Shifts shifts;
  Watch watch;
  std::int32_t workers = 0;   ///< SMs that CTAs, which wait for other ranks, may hold; 0: all
  bool early = false;         ///< programmatic dependent launch behind the previous kernel of the stream
  bool product_sent = false;  ///< the product's kernel ahead has sent all rows, the rank's own too
};

/// Threads and CTAs of a delivery on the current device.
struct DeliveryLaunch {
  const void* kernel = nullptr;
  std::int32_t ctas = 0;
  std::int32_t threads = 0;
  std::int32_t slices = 1;  ///< of a row: CTAs of a cluster
  bool early = false;
};
cudaError_t prepare_delivery(const DeliveryArgs& args, DeliveryLaunch& launch);
/// Enqueues a delivery. All ranks enqueue the same deliveries in the same order.
cudaError_t launch_delivery(DeliveryArgs& args, const DeliveryLaunch& launch, cudaStream_t stream);

/// Sets words to `flag`; `bytes` is a multiple of 16.
cudaError_t launch_clear(char* at, std::int64_t bytes, cudaStream_t stream);

/// Loads the kernels. Call once for each device: loading a kernel while another one waits could deadlock.
cudaError_t preload_deliveries();

}  // namespace shingle::cuda
