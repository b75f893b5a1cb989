"""patch("symm_mem"): PyTorch's fused ops run on Shingle.

Inductor's _micro_pipeline_tp, torchtitan's async tensor parallelism and SGLang's sequence-parallel layers call
symm_mem::fused_all_gather_matmul and symm_mem::fused_matmul_reduce_scatter. The patch replaces their kernels. SGLang
also asks for the gathered rows, which keeps its all-gathers from overlapping; see shingle.torch.sglang.
"""

import atexit
import sys

import torch
import torch.distributed._symmetric_memory as symmetric_memory  # defines the ops

from ..errors import InvalidArgument
from .counters import counts
from .functional import all_gather_gemm, gemm_reduce_scatter
from .groups import find_group


def patch(what="symm_mem", *, device="cuda"):
    """Replaces kernels of PyTorch until `undo()`, or until the end of a `with` block. Returns the Patch.

    what: "symm_mem", the only one. device: "cuda"; "cpu" is for tests. A warning at exit says if nothing was replaced.
    """
    if what != "symm_mem":
        raise InvalidArgument(f"patch({what!r}): only 'symm_mem' can be patched")
    if device not in ("cuda", "cpu"):
        raise InvalidArgument(f"patch: device = {device!r} must be 'cuda' or 'cpu'")
    return Patch(device.upper())


class Patch:
    """Replaced kernels. `replaced` counts their calls; counters() has a number for each op."""

    def __init__(self, key):
        self.replaced = 0
        self._library = torch.library.Library("symm_mem", "IMPL")  # kernels live as long as this object
        for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
            self._library.impl(name, getattr(self, f"_{name}"), key, allow_override=True)
        atexit.register(self._warn)

    def undo(self):
        """Restores PyTorch's kernels."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
            atexit.unregister(self._warn)
            self._warn()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.undo()

    def _warn(self):
        if self.replaced == 0:
            print(
                "shingle: WARNING: patch('symm_mem') replaced nothing. No call reached symm_mem::fused_*; with "
                "torch.compile set torch._inductor.config._micro_pipeline_tp = True and look for matched collectives",
                file=sys.stderr,
            )

    def _count(self, name):
        self.replaced += 1
        counts[f"symm_mem.{name}"] += 1

    def _fused_all_gather_matmul(self, A, Bs, gather_dim, group_name, *, return_A=True):
        if gather_dim in (-1, A.dim() - 1):  # columns: not rows of a GEMM
            return symmetric_memory._fused_all_gather_matmul(A, Bs, gather_dim, group_name, return_A=return_A)
        self._count("fused_all_gather_matmul")
        ws = [B.t() for B in Bs]
        if return_A:
            return all_gather_gemm(A, ws, group_name, dim=gather_dim, return_gathered=True)
        return None, all_gather_gemm(A, ws, group_name, dim=gather_dim)

    def _fused_matmul_reduce_scatter(self, A, B, reduce_op, scatter_dim, group_name):
        if scatter_dim in (-1, A.dim() - 1) or reduce_op not in ("sum", "avg"):
            return symmetric_memory._fused_matmul_reduce_scatter(A, B, reduce_op, scatter_dim, group_name)
        self._count("fused_matmul_reduce_scatter")
        out = gemm_reduce_scatter(A, B.t(), group_name, dim=scatter_dim).contiguous()  # as PyTorch returns it
        return out / find_group(group_name).size if reduce_op == "avg" else out
