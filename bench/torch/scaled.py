#!/usr/bin/env python3
"""fp8 products and their collective in PyTorch: _scaled_mm and NCCL, async tensor parallelism, and shingle.torch.patch.

    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/scaled.py --json scaled.json

Shapes are linear layers of Llama-3, split over the ranks: allgather+gemm of attention's and the MLP's first layer, and
gemm+reducescatter of their last. Scales are of the tensor, or of each row. Results are bf16.

Ways: `sequential`, one after the other; `async_tp`, PyTorch's kernels of symm_mem::fused_*scaled*; `shingle`, the same
ops with the patch. Runs are single shots of all ways in turn, launched while the device sleeps so that the host's time
is not in them, with idle time between. The median is of the slowest rank of each run. All results are compared with
those of `sequential` before they are timed. `--cpu` tries the program on small shapes without GPUs. It leaves out
async_tp and row scales, which CPUs lack.
"""
import argparse

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from shingle import torch as st

from ops import say_how_fast
from record import join_on_any, parsed, sampled, write_record

FP8, BF16 = torch.float8_e4m3fn, torch.bfloat16
LARGEST = torch.finfo(FP8).max
HEAD, KV_HEADS = 128, 8
MODELS = {"llama-3-8b": (4096, 14336), "llama-3-70b": (8192, 28672)}
BOUND = 1e-2  # of the relative error: results differ in roundings to bf16


def layers(hidden, inner, world):
    """(op, n, k) of a rank: columns are split in front of the collective's rows, k behind them."""
    return [("allgather+gemm", (hidden + 2 * KV_HEADS * HEAD) // world, hidden),
            ("allgather+gemm", 2 * inner // world, hidden),
            ("gemm+reducescatter", hidden, hidden // world),
            ("gemm+reducescatter", hidden, inner // world)]


def quantised(rows, columns, scales, device):
    """A random matrix in fp8, and what to multiply it by: one scale, or one for each row."""
    values = torch.randn(rows, columns, device=device)
    largest = values.abs().amax(dim=1, keepdim=True) if scales == "row" else values.abs().max()
    return (values * (LARGEST / largest)).to(FP8), largest / LARGEST


def multiply(rows, b, rows_scale, b_scale):
    return torch._scaled_mm(rows, b, rows_scale, b_scale, out_dtype=BF16, use_fast_accum=True)


def ways(op, m, n, k, scales, device, group):
    """The ways to compute an operator, as functions. The one after the other comes first."""
    world, on_gpu = dist.get_world_size(), device.type == "cuda"
    weight, b_scale = quantised(n, k, scales, device)
    b, b_scale = weight.t(), b_scale.t() if scales == "row" else b_scale
    if op == "allgather+gemm":
        shard, scale = quantised(m // world, k, scales, device)
        args = (shard, [b], scale, [b_scale], 0, group, [None], [None], [BF16], [True])
        c10d = torch.ops._c10d_functional

        def gather_then_multiply():
            sent = [shard.view(torch.uint8)] + ([scale] if scales == "row" else [])
            gathered = [c10d.wait_tensor(part)
                        for part in c10d.all_gather_into_tensor_coalesced(sent, world, group)]
            return multiply(gathered[0].view(FP8), b, gathered[1] if scales == "row" else scale, b_scale)

        found = {"sequential": gather_then_multiply}
        if on_gpu:
            found["async_tp"] = lambda: symmetric_memory._fused_all_gather_scaled_matmul(*args)[1][0]
        found["shingle"] = lambda: torch.ops.symm_mem.fused_all_gather_scaled_matmul(*args)[1][0]
        return found
    x, scale = quantised(m, k, scales, device)

    def multiply_then_scatter():
        out = torch.empty(m // world, n, device=device, dtype=BF16)
        dist.reduce_scatter_tensor(out, multiply(x, b, scale, b_scale))
        return out

    def fused(kernel):  # PyTorch's kernel changes the list
        return lambda: kernel(x, b, scale, b_scale, "sum", 0, 0, group, [m, n], None, None, BF16, True)

    found = {"sequential": multiply_then_scatter}
    if on_gpu:
        found["async_tp"] = fused(symmetric_memory._fused_scaled_matmul_reduce_scatter)
    found["shingle"] = fused(torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter)
    return found


def measure(case, device, group, args):
    model, op, m, n, k, scales = case
    runs = ways(op, m, n, k, scales, device, group)
    results = {name: run().float() for name, run in runs.items()}
    reference, errors = results["sequential"], {}
    for name, result in results.items():
        errors[name] = ((result - reference).norm() / reference.norm()).item()
        assert errors[name] <= BOUND, (case, name, errors)
    del results, reference
    return {"model": model, "op": op, "m": m, "n": n, "k": k, "scales": scales, "world": dist.get_world_size(),
            "error": errors["shingle"], **sampled(runs, args)}


def cases(args):
    models = {"small": (2048, 4096)} if args.cpu else MODELS
    for model, sizes in models.items():
        for op, n, k in layers(*sizes, dist.get_world_size()):
            for scales in ("tensor",) if args.cpu else ("tensor", "row"):
                for m in [64] if args.cpu else args.rows:
                    yield model, op, m, n, k, scales


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 2048, 8192], help="M, of all ranks")
    args = parsed(parser, repeat=9)
    rank, device = join_on_any(args)
    group = dist.group.WORLD.group_name
    if not args.cpu:
        symmetric_memory.enable_symm_mem_for_group(group)
    rows = []
    with torch.inference_mode(), st.patch("symm_mem", device=device.type):
        for case in cases(args):
            row = measure(case, device, group, args)
            rows.append(row)
            if rank == 0:
                print("%-11s %-18s %5d x %5d x %5d  %-6s" % (row["model"], *case[1:]), *(
                    f"{name} {row[name]['median_us']:.1f} us" for name in ("sequential", "async_tp", "shingle")
                    if name in row), f"error {row['error']:.1e}", flush=True)
            if not args.cpu:
                torch.cuda.empty_cache()
    if rank == 0:
        say_how_fast(rows)
        print({name: count for name, count in st.counters().items() if "scaled" in name}, flush=True)
        if args.json:
            write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms)
    if not args.cpu:
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
