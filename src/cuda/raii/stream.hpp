// Owners of a stream and of an event: move-only, made on the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

namespace shingle::cuda {

/// A stream that does not wait for the legacy one.
class Stream {
 public:
  /// `priority`: lower numbers first; 0 is the usual one.
  explicit Stream(int priority = 0);
  ~Stream();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }

  cudaStream_t get() const noexcept { return stream_; }
  /// Waits on the host until all work is done.
  void synchronize() const;
  /// Whether all work is done. Throws CudaError where some of it failed.
  bool idle() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Tells streams apart, also from those that had the same handle earlier in the process.
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
  /// What is issued to the stream from now on comes after the event's last record.
  void make_wait(cudaStream_t stream) const;
  void synchronize() const;
  /// Throws CudaError where something before it failed.
  bool done() const;
  /// From `begin` to this one, both with timing and done.
  float milliseconds_since(const Event& begin) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace shingle::cuda
