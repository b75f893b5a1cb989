// The tuner of one communicator on one rank. NCCL calls it from one thread at a time; others' tuners run
// beside it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "call_history.hpp"
#include "learner.hpp"
#include "meeting.hpp"
#include "settings.hpp"

namespace shingle::nccl_tuner {

/// What NCCL says of a communicator.
struct Communicator {
  std::optional<std::uint64_t> id;  ///< the same on all of its ranks; NCCL before 2.28 does not say
  std::uint64_t ranks = 0, nodes = 0;
};

class Tuner {
 public:
  /// Never throws for what is wrong outside: then NCCL's choice holds, and the log says why.
  Tuner(const Communicator& communicator, const Log& log);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  /// Sets what is chosen for a call, if anything is.
  void on_call(const Call& call, const CostTable& table, int* channels) noexcept;

 private:
  /// The ranks, as they agree on changes.
  struct Online {
    explicit Online(std::unique_ptr<Meeting> of) : meeting(std::move(of)) {}
    std::unique_ptr<Meeting> meeting;
    CallHistory calls;
    std::optional<Learner> learner;  // of the leader
    bool troubled = false;           // and has said so
  };

  void start();
  TunedTable read_table();
  void take(const TunedTable& table, bool with_communicators);
  std::unique_ptr<Meeting> meet(const Credentials& credentials);
  void go_online(std::unique_ptr<Meeting> meeting) noexcept;
  void agree(const Call& call, const CostTable& table);
  void learn(const Call& call, const CostTable& table) noexcept;
  void stop(std::string_view why) noexcept;
  void warn_of_end(std::string_view why) noexcept;
  void save(const std::vector<Learnt>& learnt);
  void refuse(const Call& call) noexcept;

  const Communicator communicator_;
  const Log log_;
  Settings settings_;
  std::uint64_t ordinal_ = 0;
  Choices choices_;
  std::unique_ptr<Online> online_;
  std::array<bool, nccl_collectives> refused_{};  // said so once
};

}  // namespace shingle::nccl_tuner
