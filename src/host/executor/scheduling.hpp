// Where the kernel runs the threads of a rank, and how soon. Its defaults favour throughput. They may leave
// two compute threads on one core while another core is idle. They may also delay a thread that a transfer
// wakes behind a compute thread, for milliseconds at a time.
#pragma once

#include <vector>

namespace shingle::host {

/// Cores of `rank` on this machine, in a world of `ranks` ranks with `workers` workers each. Empty if there
/// are too few cores for all.
std::vector<int> cores_of(int rank, int ranks, int workers);

/// Pins the calling thread to `cores`, unless it is empty.
void stay_on(const std::vector<int>& cores);

/// Requests short time slices for the calling thread. The kernel then soon gives it a core ahead of compute
/// threads once it wakes.
void wake_promptly();

/// Sets microsecond sleep precision for the calling thread: transfers on paced links take tens of
/// microseconds.
void sleep_precisely();

}  // namespace shingle::host
