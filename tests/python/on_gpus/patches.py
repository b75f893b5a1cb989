"""Cases of shingle.torch.patch."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # noqa: F401  defines symm_mem::fused_*
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.warming import forced

from .common import K, N, compare, integers


def patched_symm_mem():
    group, dtype, rows = dist.group.WORLD.group_name, torch.bfloat16, 64
    x, w = integers(rows * dist.get_world_size(), K, dtype=dtype), integers(N, K, dtype=dtype)
    shard = integers(rows, K, dtype=dtype)
    with st.patch("symm_mem") as patched, forced(PREDICTED):
        got = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w.t(), "sum", 0, group)
        _, (gathered,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [w.t()], 0, group, return_A=False)
        assert patched.replaced == 2, patched.replaced
    with forced(LIBRARY):
        compare([got, gathered], [st.gemm_reduce_scatter(x, w), st.all_gather_gemm(shard, [w])[0]], dtype, "symm_mem")


def patched_fp8():
    """The fp8 ops, with all kinds of scales, also in a graph, against products in fp32."""
    if torch.cuda.get_device_capability() < (8, 9):
        return "this GPU has no fp8"
    group, rank, ranks = dist.group.WORLD.group_name, dist.get_rank(), dist.get_world_size()
    fp8, bf16, own = torch.float8_e4m3fn, torch.bfloat16, 90  # slices of scales are not aligned

    def scales(rows, seed=None):
        return 2.0 ** integers(rows, 1, dtype=torch.float32, seed=seed)

    shard, x = integers(own, K, dtype=fp8), integers(own * ranks, K, dtype=fp8)
    b, bias = integers(N, K, dtype=fp8, seed=5).t(), integers(N, dtype=bf16, seed=6)
    one, all_rows = torch.ones((), device="cuda"), scales(own * ranks, seed=7)
    own_rows, columns = all_rows[own * rank :][:own], scales(N, seed=8).t()
    kinds = [(one, one, one), (own_rows, all_rows, columns), (all_rows, all_rows, columns)]

    def fused():
        outs = []
        for a_scale, x_scale, b_scale in kinds:
            gathered, (out,) = torch.ops.symm_mem.fused_all_gather_scaled_matmul(
                shard, [b], a_scale, [b_scale], 0, group, [bias], [None], [bf16], [True]
            )
            summed = torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
                x, b, x_scale, b_scale, "sum", 0, 0, group, [own * ranks, N], bias, None, bf16, True
            )
            outs += [gathered, out, summed]
        return outs

    def dense():
        outs, rows = [], torch.empty(own * ranks, K, device="cuda")
        dist.all_gather_into_tensor(rows, shard.float())
        for _, x_scale, b_scale in kinds:
            weight, mine = b.float() * b_scale, torch.empty(own, N, device="cuda")
            dist.reduce_scatter_tensor(mine, x.float() * x_scale @ weight + bias.float())
            outs += [rows.to(fp8), (rows * x_scale @ weight + bias.float()).to(bf16), mine.to(bf16)]
        return outs

    with st.patch("symm_mem"):
        compare(fused(), dense(), bf16, "fp8")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outs = fused()
        for _ in range(3):
            shard.copy_(integers(own, K, dtype=fp8))
            x.copy_(integers(own * ranks, K, dtype=fp8))
            graph.replay()
            compare(outs, dense(), bf16, "fp8, a replay")
        torch.cuda.synchronize()
        graph.reset()
