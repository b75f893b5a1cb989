"""Counters of what Shingle replaced and of how calls ran: {"symm_mem.fused_all_gather_matmul": 12, …}."""

import collections

counts = collections.Counter()


def counters() -> dict[str, int]:
    """A copy of the counters.

    overlapped.OP, sequential.OP: calls of an op on CUDA, by how they ran. symm_mem.OP: calls that `patch` took over.
    inductor.PATTERN: matches in compiled graphs.
    """
    return dict(counts)
