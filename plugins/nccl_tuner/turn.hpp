// A lock that lets one communicator tune at a time, among one user's programs on a host. Another's
// experiments would show in its iteration times.
#pragma once

#include <string>

namespace shingle::nccl_tuner {

class Turn {
 public:
  /// Programs with the same name take turns.
  explicit Turn(const std::string& name);
  ~Turn() { give_back(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// True if this object now holds the turn; never waits. The kernel releases the turn when a process dies.
  bool take();
  void give_back();

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace shingle::nccl_tuner
