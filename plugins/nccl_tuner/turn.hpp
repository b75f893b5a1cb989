// Of all communicators that one user's programs tune on a host, one at a time does: another's experiments
// would show in its iterations.
#pragma once

namespace shingle::nccl_tuner {

class Turn {
 public:
  Turn() = default;
  ~Turn() { give_back(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Whether it is ours, now; never waits. The system gives it back when a process dies.
  bool take();
  void give_back();

 private:
  int fd_ = -1;
};

}  // namespace shingle::nccl_tuner
