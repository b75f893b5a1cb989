// The plugin's settings, from the environment.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "loss_account.hpp"
#include "net/socket.hpp"

namespace shingle::nccl_tuner {

struct Settings {
  std::string table;  ///< SHINGLE_TUNER_TABLE: file to read choices from; empty: none
  std::string learn;  ///< SHINGLE_TUNER_LEARN: tune during the run and write this file; empty: no
  /// SHINGLE_TUNER_DEADLINE: how long a communicator's ranks wait for each other when it is made.
  std::chrono::microseconds deadline = std::chrono::seconds(10);

  /// SHINGLE_TUNER_TURN: a name. Programs with the same name do not tune at the same time.
  std::string turn;
  /// SHINGLE_TUNER_RENDEZVOUS: where the ranks of a communicator of several hosts meet. Empty: nowhere.
  std::optional<net::Address> rendezvous;
  /// SHINGLE_TUNER_LOSS and SHINGLE_TUNER_TIME: bounds of online tuning.
  Limits limits;
  /// SHINGLE_TUNER_CUPTI: CUPTI's library, which times computation and communication apart. Empty: nothing
  /// does.
  std::string cupti;
};

/// Throws InvalidArgument that names the variable.
Settings settings_from_environment();

}  // namespace shingle::nccl_tuner
