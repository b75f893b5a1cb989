// Where ranks meet: collectives that all ranks of a communicator enter, and messages that are sent and
// received.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "schedule.hpp"
#include "shingle/plan/plan.hpp"

namespace shingle {

class Meetings {
 public:
  explicit Meetings(const Plan& plan);

  /// A rank enters its next collective on a communicator. If it is the last rank to do so, returns the
  /// segments of all ranks, in the communicator's order of ranks; else nothing.
  std::vector<std::int32_t> enter(std::int32_t communicator, std::int32_t rank, std::int32_t segment,
                                  const std::vector<Segment>& segments);
  /// True if all ranks have entered the collective of this segment.
  bool complete(std::int32_t segment) const { return complete_.contains(segment); }
  /// Ranks that have not entered the collective that `rank` entered last.
  std::vector<std::int32_t> missing(std::int32_t communicator, std::int32_t rank) const;
  /// How the steps of a collective differ in what must agree; empty: they fit.
  std::string mismatch(std::int32_t communicator, const std::vector<std::int32_t>& call,
                       const std::vector<Segment>& segments) const;

  /// A rank posts the messages of an exchange. Returns those that meet their counterparts.
  std::vector<Event> post(const Exchange& exchange, std::int32_t rank, std::int32_t segment);
  /// True if each message of the exchange of this segment has met its counterpart.
  bool all_met(std::int32_t segment) const { return unmatched_.at(segment) == 0; }

 private:
  struct Posted {
    std::int32_t segment;
    std::int32_t index;
  };
  struct Channel {
    std::vector<Posted> sends, receives;
    std::size_t matched = 0;
  };

  Channel& channel(std::int32_t communicator, std::int32_t from, std::int32_t to) {
    return channels_[{communicator, from, to}];
  }
  void match(Channel& channel, std::vector<Event>& met);

  const Plan& plan_;
  std::vector<std::vector<std::vector<std::int32_t>>> calls_;  // [communicator][call]: segments
  std::vector<std::vector<std::size_t>> entered_;              // [communicator][rank]: number of calls
  std::set<std::int32_t> complete_;                            // segments of collectives
  std::map<std::array<std::int32_t, 3>, Channel> channels_;    // by communicator, sender and receiver
  std::map<std::int32_t, std::size_t> unmatched_;              // messages, by segment of the exchange
};

}  // namespace shingle
