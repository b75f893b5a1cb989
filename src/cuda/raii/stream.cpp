#include "stream.hpp"

#include "check.hpp"
#include "tolerate.hpp"

namespace shingle::cuda {

Stream::Stream(int priority) {
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
        "cudaStreamCreateWithPriority");
}

Stream::~Stream() {
  if (stream_ != nullptr) tolerate(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

void Stream::synchronize() const {
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

bool Stream::idle() const {
  const cudaError_t result = cudaStreamQuery(stream_);
  if (result == cudaErrorNotReady) return false;
  check(result, "cudaStreamQuery");
  return true;
}

unsigned long long id_of(cudaStream_t stream) {
  unsigned long long id = 0;
  check(cudaStreamGetId(stream, &id), "cudaStreamGetId");
  return id;
}

Event::Event(Timing timing) {
  check(cudaEventCreateWithFlags(&event_, timing == Timing::on ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
}

Event::~Event() {
  if (event_ != nullptr) tolerate(cudaEventDestroy(event_), "cudaEventDestroy");
}

void Event::record(cudaStream_t stream) const {
  check(cudaEventRecord(event_, stream), "cudaEventRecord");
}

void Event::make_wait(cudaStream_t stream) const {
  check(cudaStreamWaitEvent(stream, event_), "cudaStreamWaitEvent");
}

void Event::synchronize() const {
  check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

bool Event::done() const {
  const cudaError_t result = cudaEventQuery(event_);
  if (result == cudaErrorNotReady) return false;
  check(result, "cudaEventQuery");
  return true;
}

float Event::milliseconds_since(const Event& begin) const {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
  return ms;
}

}  // namespace shingle::cuda
