// The tuner of one communicator on one rank. NCCL calls it from one thread at a time; tuners of other
// communicators run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "call_history.hpp"
#include "group_chunks.hpp"
#include "learner.hpp"
#include "meeting.hpp"
#include "settings.hpp"

namespace shingle::nccl_tuner {

/// What NCCL reports about a communicator.
struct Communicator {
  std::optional<std::uint64_t> id;  ///< the same on all of its ranks; absent before NCCL 2.28
  std::uint64_t ranks = 0, nodes = 0;
  int interface = 5;  ///< version of NCCL's interface; from 6 on it asks for chunk sizes

  bool asks_chunks() const { return interface >= 6; }
};

class Tuner {
 public:
  /// Does not throw for external errors: NCCL's choice then holds, and the log has the reason.
  Tuner(const Communicator& communicator, const Log& log);
  ~Tuner();
  Tuner(const Tuner&) = delete;
  Tuner& operator=(const Tuner&) = delete;

  /// Sets the choice for a call, if there is one.
  void on_call(const Call& call, const CostTable& table, int* channels) noexcept;
  /// The chunk size in bytes of a part of a call that was made last; 0: NCCL's own.
  std::uint32_t chunk_bytes(int collective, int algorithm, int protocol) noexcept {
    return chunks_.of(collective, algorithm, protocol);
  }

 private:
  /// State of ranks that agree on changes.
  struct Online {
    explicit Online(std::unique_ptr<Meeting> of) : meeting(std::move(of)) {}
    std::unique_ptr<Meeting> meeting;
    CallHistory calls;
    std::optional<Learner> learner;  // on the leader only
    bool troubled = false;           // the trouble has been logged
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
  std::unique_ptr<KernelRecorder> make_recorder();
  void save(const std::vector<Learnt>& learnt, const std::string& summary);
  void refuse(const Call& call) noexcept;

  const Communicator communicator_;
  const Log log_;
  Settings settings_;
  std::uint64_t ordinal_ = 0;
  Choices choices_;
  GroupChunks chunks_;
  std::unique_ptr<Online> online_;
  std::array<bool, nccl_collectives> refused_{};  // the refusal has been logged
};

}  // namespace shingle::nccl_tuner
