"""patch("symm_mem"): PyTorch's fused ops run on Shingle.

Inductor's _micro_pipeline_tp, torchtitan's async tensor parallelism and SGLang's sequence-parallel layers call
symm_mem::fused_all_gather_matmul and symm_mem::fused_matmul_reduce_scatter. With fp8 they call
fused_all_gather_scaled_matmul and fused_scaled_matmul_reduce_scatter. The patch replaces the kernels of all four.
"""

import atexit
import sys

import torch
import torch.distributed._symmetric_memory as symmetric_memory  # defines the ops

from ..errors import InvalidArgument
from . import scaled
from .counters import counts
from .functional import all_gather_gemm, gemm_reduce_scatter
from .groups import find_group

OPS = (
    "fused_all_gather_matmul",
    "fused_matmul_reduce_scatter",
    "fused_all_gather_scaled_matmul",
    "fused_scaled_matmul_reduce_scatter",
)


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
        for name in OPS:
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

    def _fused_all_gather_scaled_matmul(
        self, A, Bs, A_scale, B_scales, gather_dim, group_name, biases, result_scales, out_dtypes, use_fast_accum
    ):
        of_products = {"B_scales": B_scales, "biases": biases, "result_scales": result_scales,
                       "out_dtypes": out_dtypes, "use_fast_accum": use_fast_accum}  # fmt: skip
        for name, values in of_products.items():
            if len(values) != len(Bs):
                raise InvalidArgument(f"{name} has {len(values)} elements; expected {len(Bs)}, as Bs")
        if not scaled.is_served(A.shape, gather_dim, find_group(group_name).size):
            return symmetric_memory._fused_all_gather_scaled_matmul(
                A, Bs, A_scale, B_scales, gather_dim, group_name, biases, result_scales, out_dtypes, use_fast_accum
            )
        self._count("fused_all_gather_scaled_matmul")
        dtypes = [scaled.dtype_of(dtype, A) for dtype in out_dtypes]
        weights = list(map(scaled.Weight, Bs, B_scales, biases, result_scales, dtypes, use_fast_accum))
        return scaled.all_gather_gemm(A, A_scale, weights, gather_dim, group_name)

    def _fused_scaled_matmul_reduce_scatter(
        self, A, B, A_scale, B_scale, reduce_op, orig_scatter_dim, scatter_dim_after_maybe_reshape, group_name,
        output_shape, bias=None, result_scale=None, out_dtype=None, use_fast_accum=False,
    ):  # fmt: skip
        shape = [*A.shape[:-1], B.shape[-1]] if output_shape is None else output_shape
        if not scaled.is_served(shape, orig_scatter_dim, 1) or reduce_op not in ("sum", "avg"):
            return symmetric_memory._fused_scaled_matmul_reduce_scatter(
                A, B, A_scale, B_scale, reduce_op, orig_scatter_dim, scatter_dim_after_maybe_reshape, group_name,
                shape, bias, result_scale, out_dtype, use_fast_accum,
            )  # fmt: skip
        self._count("fused_scaled_matmul_reduce_scatter")
        weight = scaled.Weight(B, B_scale, bias, result_scale, scaled.dtype_of(out_dtype, A), use_fast_accum)
        return scaled.gemm_reduce_scatter(A, A_scale, weight, shape, orig_scatter_dim, reduce_op == "avg", group_name)
