#include "streams.hpp"

#include <algorithm>

#include "shingle/base/error.hpp"

namespace shingle::host {
namespace {

constexpr std::size_t most_waiting = 256;  // of a stream: as many launches as a GPU's queue takes, or so

}  // namespace

Streams::~Streams() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  changed_.notify_all();
  for (auto& [rank, stream] : streams_) stream.thread.join();
}

void Streams::enqueue(int rank, std::function<void()> work) {
  std::unique_lock lock(mutex_);
  Stream& stream = streams_[rank];
  if (!stream.thread.joinable()) {
    try {
      stream.thread = std::thread([this, &stream] { serve(stream); });
    } catch (const std::system_error&) {
      streams_.erase(rank);
      throw Unsupported("cannot start a thread for the stream of a rank");
    }
  }
  while (stream.waiting.size() >= most_waiting && !health_.stopped())
    changed_.wait_for(lock, health_.attention());
  stream.waiting.push_back(std::move(work));
  changed_.notify_all();
}

void Streams::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return idle(); });
}

/// Requires the mutex.
bool Streams::idle() const {
  return std::ranges::all_of(streams_,
                             [](const auto& at) { return at.second.waiting.empty() && !at.second.busy; });
}

void Streams::serve(Stream& stream) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return quit_ || !stream.waiting.empty(); });
    if (stream.waiting.empty()) return;
    const std::function<void()> work = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    stream.busy = true;
    lock.unlock();
    if (!health_.stopped()) try {
        work();
      } catch (const Stopped&) {
      } catch (...) {
        health_.fail(std::current_exception());
      }
    lock.lock();
    stream.busy = false;
    changed_.notify_all();
  }
}

}  // namespace shingle::host
