// Move-only owners of a stream and of an event, for the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

namespace shingle::cuda {

/// A stream that does not synchronise with the legacy stream.
class Stream {
 public:
  /// `priority`: lower numbers go first; 0 is the default.
  explicit Stream(int priority = 0);
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  cudaStream_t get() const noexcept { return stream_; }
  /// Blocks the host until all work is done.
  void synchronize() const;
  /// True if all work is done. Throws CudaError if some of it failed.
  bool idle() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Identifies a stream. Unlike a handle, an id is never reused in the process.
unsigned long long id_of(cudaStream_t stream);

class Event {
 public:
  enum class Timing : bool { off, on };

  explicit Event(Timing timing = Timing::off);
  ~Event();
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  cudaEvent_t get() const noexcept { return event_; }
  void record(cudaStream_t stream) const;
  /// Orders later work of the stream after the event's last record.
  void make_wait(cudaStream_t stream) const;
  void synchronize() const;
  /// True if the event has completed. Throws CudaError if earlier work failed.
  bool done() const;
  /// Time from `begin` to this event. Both must have timing, and must have completed.
  float milliseconds_since(const Event& begin) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace shingle::cuda
