#include "scheduling.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace shingle::host {
namespace {

/// The kernel's sched_attr, which the C library does not declare.
struct Attributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns, deadline_ns, period_ns;
};

}  // namespace

std::vector<int> cores_of(int rank, int ranks, int workers) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < ranks * workers) return {};
  std::vector<int> cores;
  for (int core = 0, usable = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set) && usable++ / workers == rank) cores.push_back(core);
  return cores;
}

void stay_on(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);  // may be forbidden; the kernel then chooses the core
}

void sleep_precisely() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns
}

void wake_promptly() {
  Attributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  attributes.size = sizeof attributes;
  attributes.runtime_ns = 100'000;  // the shortest; kernels before 6.12 ignore it
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace shingle::host
