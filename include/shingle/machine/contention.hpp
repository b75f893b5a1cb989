// Contention: how much computation and communication slow each other down.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "shingle/base/computation_kind.hpp"
#include "shingle/machine/curve.hpp"

namespace shingle {

/// Bytes that a computation reads and writes (Lagom's D, of all thread blocks).
struct MovedBytes {
  double once = 0;   ///< of its operands and its output, each once; 0: unknown
  double again = 0;  ///< of operands that several tiles read: all reads beyond the first

  bool operator==(const MovedBytes&) const = default;
};

/// Sizes of a product in tiles.
struct TiledProduct {
  std::int64_t m = 0, n = 0, k = 0;
  std::int32_t tile_rows = 1, tile_cols = 1;
};
/// Each tile reads its rows of A and its columns of B. `element`: bytes of one.
MovedBytes product_moves(const TiledProduct& product, double element);
/// Of an attention of `cols` columns in all heads: each block of 128 queries reads the keys and values that
/// it sees.
MovedBytes attention_moves(double queries, double keys, double cols, bool causal, double element);

/// Model of contention (Lagom Eq. 4-6; FlashOverlap §4.1.3). Beside collectives, the time of a tile is
/// multiplied by (1 - s) + s · B / (B - V). Here s is the part of its time that waits for memory, B the
/// memory's bandwidth and V the memory bandwidth that collectives use.
///
/// Each computation has its own s: the time in which its bytes pass through memory, over its time.
struct Contention {
  double memory_share = 0;  ///< s of computations whose `misses` are unknown, in [0, 1]
  /// Part of repeated reads that caches miss, in [0, 1], by ComputationKind.
  std::array<std::optional<double>, computation_kinds> misses{};
  double channel_gbps = 0;  ///< memory bandwidth that a worker of a collective uses with large chunks
  double chunk_bytes = 0;   ///< chunk size at which a worker uses half of that
  /// Memory traffic of a copy engine at either end, per byte that it moves to another rank. 0: engines slow
  /// nothing down.
  double engine_traffic = 0;
  /// Relative time added to tiles of a product while it stores tiles of all its workers to other ranks: loads
  /// wait behind these stores. In proportion if some workers' tiles are in flight.
  double store_slowdown = 0;
  /// Added time of a collective for each chunk of a channel. Absent: half of the link's latency, because two
  /// chunks are in flight.
  std::optional<double> chunk_us{};
  double collective_slowdown = 0;  ///< relative time added to a collective beside a GEMM
  /// Relative time added to a product's tiles beside a collective, by Traffic: what memory traffic does not
  /// explain.
  std::array<double, traffics> product_slowdown{};
  double steals = 0;  ///< cores shared with communication: lost computing time, as a part of the time in
                      ///< which bytes are moved
  /// Added time of a collective that starts beside computation: its threads must first get a core.
  double wake_us = 0;
  /// As Machine::lone_latency, for a collective beside computation. 0: Machine::lone_latency holds there too.
  double lone_latency = 0;
  bool persistent = false;  ///< all workers of a GEMM are released when its last tile is done, not one by one
  /// Residuals of the fit: root mean square of predicted / measured time - 1. The first is of products beside
  /// collectives, the second of collectives beside products.
  std::optional<double> product_residual{}, collective_residual{};

  std::optional<double>& misses_of(ComputationKind kind) { return misses[static_cast<std::size_t>(kind)]; }
  std::optional<double> misses_of(ComputationKind kind) const {
    return misses[static_cast<std::size_t>(kind)];
  }
  double& slowed_by(Traffic traffic) { return product_slowdown[static_cast<std::size_t>(traffic)]; }
  double slowed_by(Traffic traffic) const { return product_slowdown[static_cast<std::size_t>(traffic)]; }
  /// s of a computation that takes `us`, with memory of `all_gbps`.
  double share(ComputationKind kind, const MovedBytes& moved, double us, double all_gbps) const;
  /// V in 1e9 bytes/s: memory bandwidth that `channels` workers of a collective use with chunks of `bytes`.
  /// 0: large chunks.
  double traffic_gbps(double channels, double bytes) const {
    return channels * channel_gbps * (bytes > 0 ? bytes / (bytes + chunk_bytes) : 1);
  }
  /// Time of a tile relative to its time alone (Eq. 6), while collectives use `taken_gbps` of the memory's
  /// `all_gbps`. `share` is its s. At least a twentieth of the bandwidth is left to the tile.
  static double slowed(double share, double taken_gbps, double all_gbps);

  bool operator==(const Contention&) const = default;
};

/// One measurement for the fit of Contention: a product or another computation, and collectives beside it.
struct ContentionSample {
  Traffic traffic = Traffic::allreduce;
  std::int32_t ranks = 2;
  std::int32_t workers = 0;      ///< NC of each rank; 0: NCCL's choice
  std::int64_t chunk_bytes = 0;  ///< C; 0: NCCL's choice
  double bytes = 0;              ///< of the collective, as in Sample
  double us = 0;                 ///< time of a collective alone
  double beside_us = 0;          ///< time of a collective beside the product
  double product_us = 0;         ///< time of the product alone, on the workers that the collectives leave
  double product_beside_us = 0;  ///< time of the product beside the collectives
  /// Number of collectives beside the product. 0: they run back to back for as long as the product takes.
  std::int32_t calls = 0;
  ComputationKind computation = ComputationKind::product;  ///< kind of what stands in the product's place
  bool engines = false;                                    ///< copy engines move the bytes, on no workers
  MovedBytes moved{};

  bool operator==(const ContentionSample&) const = default;
};

}  // namespace shingle
