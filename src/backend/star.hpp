// The processes of a world as a star of connections around rank 0.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "at_exit.hpp"
#include "net/rendezvous.hpp"
#include "processes.hpp"

namespace shingle {

class Star final : public Processes {
 public:
  Star(const Launched& launched, double timeout_us, const net::Token& token);
  /// `listener`: of rank 0, which listens there for the others; they join it at `at`.
  Star(int rank, int size, net::Socket listener, const net::Address& at, double timeout_us,
       const net::Token& token);
  /// Says goodbye: a connection that ends without it is a process that died. A process that exits with status
  /// 0 says goodbye too; with another status it has failed.
  ~Star() override;

  void tell(std::string_view reason) noexcept override;
  std::vector<int> silent(std::string_view reason, double timeout_us) override;
  void part() override { parting_ = true; }
  void watch() override;
  void peek() override;

 private:
  static constexpr std::size_t most_reason = std::size_t{64} << 10;  // bytes of a failure's reason
  /// After its deadline, rank 0 names the missing ranks. Other ranks wait this much longer for that message.
  static constexpr std::chrono::seconds grace{1};

  enum class Verdict : std::uint8_t { welcome, other_size, no_rank, taken };
  struct Hello;

  std::vector<std::string> gather(std::string_view own, double timeout_us, std::size_t most_bytes) override;
  std::vector<std::string> gather_at_first(std::string_view own, double timeout_us, std::size_t most_bytes);
  void gather_here(std::vector<std::string>& all, net::Clock::time_point deadline, double timeout_us,
                   std::size_t most_bytes);
  net::Frame reply_of_first(net::Clock::time_point deadline, double timeout_us);
  void await_any(const std::vector<int>& ranks, net::Clock::time_point deadline);
  std::vector<int> others() const;
  void await_others(net::Socket listener, const net::Meeting& meeting, double timeout_us);
  bool admit(net::Guest guest, const net::Token& token);
  Verdict judge(const Hello& hello);
  void join(const net::Address& at, const net::Meeting& meeting, double timeout_us);
  std::string payload_of(int rank, net::Frame frame, std::size_t most_bytes);
  void look(int rank);
  void require_sound(int rank);
  [[noreturn]] void answer(const std::string& reason);
  bool has_answered(int rank);
  void await_word_of_first(net::Clock::time_point deadline);
  void broadcast(net::Kind kind, std::string_view payload) noexcept;
  void leave(int status) noexcept;
  std::string missing_ranks() const;
  template <class Action>
  void exchange(int rank, double timeout_us, Action action);
  net::Connection& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const net::Connection& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  int rank_;
  int size_;
  std::size_t most_frame_ = most_reason;  // bytes of the largest frame that another rank may send
  bool parting_ = false;
  std::vector<net::Connection> peers_;  // by rank; ranks other than 0 have only rank 0's
  /// Made once all are connected: until then this thread changes `peers_`, which an exit in another thread
  /// would read.
  std::optional<AtExit> at_exit_;
};

}  // namespace shingle
