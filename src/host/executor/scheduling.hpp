// Where the kernel runs the threads of a rank, and how soon. Its defaults are made for throughput: they leave
// two threads that compute on one core while another is idle, and a thread that a transfer wakes behind one
// that computes, for milliseconds at a time.
#pragma once

#include <vector>

namespace shingle::host {

/// The cores of a rank on this machine, in a world of so many ranks with so many workers each; none where
/// they are not enough for all.
std::vector<int> cores_of(int rank, int ranks, int workers);

/// Keeps the calling thread on these cores, if there are any.
void stay_on(const std::vector<int>& cores);

/// The calling thread, once woken, is soon given a core by those that compute: it asks for short slices, as
/// it has little to do at a time.
void wake_promptly();

/// The calling thread sleeps to the microsecond: paced links take tens of them.
void sleep_precisely();

}  // namespace shingle::host
