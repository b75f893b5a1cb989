"""Device times of what warmup tries, the same on all ranks."""

import contextlib

import torch
import torch.distributed as dist

from .choices import table

WARM, TIMED = 1, 7  # samples that are not kept, and that are
SLEEP_CYCLES = 4_000_000  # about two milliseconds: longer than the host takes to launch the calls of a sample


def median_of(group, launch, sleep_cycles=SLEEP_CYCLES):
    """Median time of what launch() launches, in microseconds: device time, as far as the device sleeps meanwhile."""
    samples, meeting = [], torch.zeros(1, device="cuda")
    for _ in range(WARM + TIMED):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier(group=group.process_group)
        torch.cuda._sleep(sleep_cycles)
        dist.all_reduce(meeting, group=group.process_group)  # devices wake tens of microseconds apart
        begin.record()
        launch()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3)
    return sorted(samples[WARM:])[TIMED // 2]


def slowest(group, times):
    """The largest of each time over the ranks."""
    found = torch.tensor(times, device="cuda")
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group.process_group)
    return found.tolist()


@contextlib.contextmanager
def forced(choice):
    """All calls run by one choice: LIBRARY, PREDICTED or a mechanism. None: as the table says."""
    table.forced, before = choice, table.forced
    try:
        yield
    finally:
        table.forced = before
