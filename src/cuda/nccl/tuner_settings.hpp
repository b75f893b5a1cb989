// Settings of a communicator's collectives that only a tuner of NCCL can set: algorithm, protocol and chunk
// size. Shingle's tuner plugin takes them from a table when a communicator is made.
#pragma once

#include <filesystem>

#include "shingle/base/collective_config.hpp"

namespace shingle::cuda {

/// True if NCCL loads Shingle's tuner plugin in this process: NCCL_TUNER_PLUGIN names it.
bool has_tuner_plugin();

/// True if NCCL asks a tuner for chunk sizes: from 2.30 on.
bool nccl_asks_chunks();

/// The settings of `config` that the plugin can set here. {} without the plugin.
CollectiveConfig tuner_settings(const CollectiveConfig& config);

/// While it lives, the plugin gives these settings to communicators of `ranks` ranks that are made in this
/// process. Not thread-safe: it sets an environment variable. Does nothing for {}.
class TunedCommunicator {
 public:
  /// Throws IoError.
  TunedCommunicator(const CollectiveConfig& settings, int ranks);
  ~TunedCommunicator();
  TunedCommunicator(const TunedCommunicator&) = delete;
  TunedCommunicator& operator=(const TunedCommunicator&) = delete;

 private:
  std::filesystem::path table_;
};

}  // namespace shingle::cuda
