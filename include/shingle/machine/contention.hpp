// What computation and communication beside each other take from each other.
#pragma once

#include <cstdint>
#include <optional>

#include "shingle/machine/curve.hpp"

namespace shingle {

/// Lagom Eq. 4-6; FlashOverlap §4.1.3. A tile takes (1 - s) + s · B / (B - V) of its time alone, where s is
/// `memory_share`, B the memory's rate and V what collectives take of it.
struct Contention {
  double memory_share = 0;  ///< of a tile's time, in [0, 1]: waiting for memory
  double channel_gbps = 0;  ///< of the memory, that each worker of a collective takes with large chunks
  double chunk_bytes = 0;   ///< chunk with which it takes half of that
  /// What a collective takes longer for each chunk of a channel; absent: half of the link's latency, as two
  /// of them are under way.
  std::optional<double> chunk_us{};
  double collective_slowdown = 0;  ///< a collective beside a GEMM takes longer by this part
  double steals = 0;  ///< of the time in which bytes are moved, the part that a worker beside loses
  double wake_us =
      0;  ///< what a collective takes longer that meets beside computation: its threads need cores
  double lone_latency = 0;  ///< what a collective beside computation takes longer that follows no other at
                            ///< once, as Machine::lone_latency; 0: what it does alone
  bool persistent = false;  ///< a GEMM's workers leave when all of its tiles are done, not one by one
  /// Of what was fitted: root mean square of predicted over measured time less one, of products beside
  /// collectives, and of collectives beside products.
  std::optional<double> product_residual{}, collective_residual{};

  /// V of `channels` workers of a collective that move chunks of so many bytes; 0: large ones.
  double traffic_gbps(double channels, double bytes) const {
    return channels * channel_gbps * (bytes > 0 ? bytes / (bytes + chunk_bytes) : 1);
  }
  /// What a tile beside collectives that take `taken` of the memory's `all` takes, over its time alone
  /// (Eq. 6); they leave it a twentieth at least.
  double slowed(double taken_gbps, double all_gbps) const;

  bool operator==(const Contention&) const = default;
};

/// One measurement that contention is fitted on: a product, and collectives beside it.
struct ContentionSample {
  Traffic traffic = Traffic::allreduce;
  std::int32_t ranks = 2;
  std::int32_t workers = 0;      ///< NC, of each rank; 0: the library's choice
  std::int64_t chunk_bytes = 0;  ///< C; 0: the library's choice
  double bytes = 0;              ///< as Sample has them
  double us = 0;                 ///< of a collective alone
  double beside_us = 0;          ///< of a collective beside the product
  double product_us = 0;         ///< of the product alone, on the workers that it gets beside
  double product_beside_us = 0;  ///< of the product beside the collectives
  std::int32_t calls = 0;        ///< beside the product; 0: one after the other, as long as it takes

  bool operator==(const ContentionSample&) const = default;
};

}  // namespace shingle
