// A small overlap to search configurations for: collectives one after another beside computations, of which
// each may await the collective of its number. Lagom's Eq. 1-6, in a few lines and with figures of its own.
#pragma once

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "cotune/search.hpp"

namespace shingle::test {

struct ToyOverlap {
  double workers = 84, link_gbps = 50, channel_gbps = 9, memory_share = 0.3;
  double channel_memory_share = 0.02;    ///< of the memory's rate, that a channel with large chunks takes
  std::vector<double> compute_us{1000};  ///< alone
  std::vector<double> bytes{20e6};       ///< of each collective
  bool chained = false;                  ///< computation i awaits collective i

  double chunk(const cotune::Config& config) const {
    return config.chunk_bytes > 0 ? static_cast<double>(config.chunk_bytes) : 2 << 20;
  }
  double channels(const cotune::Config& config) const { return config.channels > 0 ? config.channels : 16; }
  double communication_us(const cotune::Config& config, double of_bytes) const {
    const double protocol = config.protocol == Protocol::ll ? 0.4 : 1;
    const double full = chunk(config) / (chunk(config) + (32 << 10));
    return 5 + of_bytes / (std::min(channels(config) * channel_gbps, link_gbps) * protocol * full * 1e3);
  }
  double slowdown(const cotune::Config& config) const {
    const double taken = std::min(
        channels(config) * channel_memory_share * chunk(config) / (chunk(config) + (256 << 10)), 0.95);
    return workers / (workers - channels(config)) * (1 - memory_share + memory_share / (1 - taken));
  }

  cotune::Measurement measure(const std::vector<cotune::Config>& configs) const {
    cotune::Measurement result;
    std::vector<double> ends;
    double now = 0;
    for (std::size_t j = 0; j < bytes.size(); ++j) {
      result.communication_us.push_back(communication_us(configs[j], bytes[j]));
      ends.push_back(now += result.communication_us.back());
    }
    double at = 0;
    std::size_t beside = 0;
    for (std::size_t i = 0; i < compute_us.size(); ++i) {
      if (chained && i < ends.size()) at = std::max(at, ends[i]);
      const double begin = at;
      for (double left = compute_us[i]; left > 0;) {
        while (beside < ends.size() && ends[beside] <= at) ++beside;
        const bool alone = beside == ends.size();
        const double slower = alone ? 1 : slowdown(configs[beside]);
        const double until = alone ? std::numeric_limits<double>::infinity() : ends[beside];
        const double took = std::min(left * slower, until - at);
        left = took < left * slower ? left - took / slower : 0;
        at += took;
      }
      result.compute_us += at - begin;
    }
    result.makespan_us = std::max(at, now);
    return result;
  }

  /// The best that a search finds; it is told all, or the makespan alone, with noise of so many percent.
  cotune::Search searched(cotune::Method method, const cotune::Space& space,
                          const cotune::Options& options = {}, bool makespan_alone = false,
                          double noise = 0) const {
    cotune::Search search(method, space, static_cast<int>(bytes.size()), options);
    std::mt19937_64 bits(7);
    while (const auto configs = search.next()) {
      cotune::Measurement measured = measure(*configs);
      measured.makespan_us *= 1 + noise * (static_cast<double>(bits() % 2001) - 1000) / 1000;
      if (makespan_alone) measured = {measured.makespan_us};
      search.tell(measured);
    }
    return search;
  }
};

}  // namespace shingle::test
