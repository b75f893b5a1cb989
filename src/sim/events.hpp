// Queue of future events, ordered by time.
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace shingle::sim {

enum class What : std::uint8_t {
  resume,      ///< a lane continues
  batch,       ///< tiles of a job are done
  transfer,    ///< bytes have arrived
  links,       ///< a transfer on the links may be over
  collective,  ///< a collective may be over
};

struct Event {
  double at = 0;
  std::int64_t order = 0;  ///< breaks ties in time: earlier requests come first
  What what = What::resume;
  std::int32_t id = 0;
  std::int64_t version = 0;  ///< version of the event's subject; outdated events are dropped

  bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
};

class Events {
 public:
  void push(double at, What what, std::int32_t id, std::int64_t version = 0) {
    queue_.push({at, pushed_++, what, id, version});
  }
  bool empty() const { return queue_.empty(); }
  double next_at() const { return queue_.top().at; }
  Event pop() {
    const Event event = queue_.top();
    queue_.pop();
    return event;
  }
  std::int64_t pushed() const { return pushed_; }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::int64_t pushed_ = 0;
};

}  // namespace shingle::sim
