"""Counters of what Shingle replaced and of how calls ran: {"symm_mem.fused_all_gather_matmul": 12, …}."""

import atexit
import collections
import sys

counts = collections.Counter()
_expected: dict[str | tuple[str, ...], str] = {}  # what should be counted, with what to do if nothing is


def counters() -> dict[str, int]:
    """A copy of the counters.

    overlapped.OP, sequential.OP: calls of an op on CUDA, by how they ran, and collectives of buckets (allgather,
    reducescatter, allreduce), by copy engines or by c10d. fsdp.groups: parameter groups. symm_mem.OP: calls that
    `patch` took over. inductor.PATTERN, vllm.PATTERN: matches in compiled graphs. transformers.STYLE, megatron.LAYER:
    layers. vllm.row_parallel, sglang.LAYER: calls outside torch.compile. vllm.experts, sglang.experts: calls of
    mixture-of-experts layers.
    """
    return dict(counts)


def expect(prefix, source, hint):
    """Warns at exit if nothing was counted under a prefix, or a tuple of them. source: the call that expects it."""
    if not _expected:
        atexit.register(_warn)
    _expected[prefix] = f"{source} replaced nothing. {hint}"


def _warn():
    for prefix, text in _expected.items():
        if not any(name.startswith(prefix) for name in counts):
            print(f"shingle: WARNING: {text}", file=sys.stderr)
