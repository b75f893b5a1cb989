// Of all communicators that one user's programs tune on a host, one at a time does: another's experiments
// would show in its iterations.
#pragma once

#include <string>

namespace shingle::nccl_tuner {

class Turn {
 public:
  /// Programs take turns with those that use the same name.
  explicit Turn(const std::string& name);
  ~Turn() { give_back(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Whether it is ours, now; never waits. The system gives it back when a process dies.
  bool take();
  void give_back();

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace shingle::nccl_tuner
