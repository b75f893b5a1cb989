#!/usr/bin/env python3
"""PyTorch's async tensor parallelism (symmetric memory) on the shapes of a suite, beside its matmul and NCCL.

    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
    torchrun --standalone --nproc-per-node 4 bench/torch/async_tp.py bench/layers_tp8.json --json async_tp.json

A suite is what `shingle bench --suite` takes: lists of M, N and K by operator, K of one rank (N for allgather+gemm). Of
its operators async-TP has allgather+gemm and gemm+reducescatter; the others are left out. Runs are single shots, the
two in turn, launched while the device sleeps so that the host's time is not in them, with idle time between; the median
is of the slowest rank of each run. Results of both are compared once before they are timed.
"""
import argparse
import itertools
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from record import write_record

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
SLEEP_CYCLES = 4_000_000  # longer than the host takes to launch either


def shapes(suite):
    for entry in suite["shapes"]:
        if entry["op"] not in ("allgather+gemm", "gemm+reducescatter"):
            continue
        sides = (v if isinstance(v, list) else [v] for v in (entry["m"], entry["n"], entry["k"]))
        for m, n, k in itertools.product(*sides):
            yield entry["op"], m, n, k


def ways(op, m, n, k, world, group):
    """The two ways to compute an operator, as functions of nothing."""
    weight = torch.randn(n, k, **BF16).t()
    if op == "allgather+gemm":
        shard, rows = torch.randn(m // world, k, **BF16), torch.empty(m, k, **BF16)

        def one_after_the_other():
            dist.all_gather_into_tensor(rows, shard)
            return rows @ weight

        return one_after_the_other, lambda: torch.ops.symm_mem.fused_all_gather_matmul(
            shard, [weight], gather_dim=0, group_name=group)[1][0]
    rows, mine = torch.randn(m, k, **BF16), torch.empty(m // world, n, **BF16)

    def one_after_the_other():
        dist.reduce_scatter_tensor(mine, rows @ weight)
        return mine

    return one_after_the_other, lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(
        rows, weight, "sum", scatter_dim=0, group_name=group)


def shot_us(run):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    us = torch.tensor([begin.elapsed_time(end) * 1e3], device="cuda")
    dist.all_reduce(us, op=dist.ReduceOp.MAX)
    return us.item()


def quartiles(samples):
    low, median, high = statistics.quantiles(samples, n=4)
    return {"median_us": median, "p25_us": low, "p75_us": high}


def measure(shape, world, group, args):
    op, m, n, k = shape
    runs = dict(zip(("sequential", "async_tp"), ways(op, m, n, k, world, group)))
    reference, result = (run().float().clone() for run in runs.values())
    error = ((result - reference).norm() / reference.norm()).item()
    samples = {name: [] for name in runs}
    for turn in range(args.repeat + 2):
        for name, run in runs.items():
            time.sleep(args.idle_ms / 1e3)
            us = shot_us(run)
            if turn >= 2:  # the first two warm up
                samples[name].append(us)
    return {"op": op, "m": m, "n": n, "k": k, "world": world, "error": error,
            **{name: quartiles(taken) for name, taken in samples.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--idle-ms", type=float, default=20)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    rank, world, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    symmetric_memory.enable_symm_mem_for_group(group)
    torch.manual_seed(rank + 1)
    with open(args.suite, encoding="utf-8") as file:
        wanted = [shape for shape in shapes(json.load(file)) if shape[1] % world == 0]
    rows = []
    for shape in wanted:
        row = measure(shape, world, group, args)
        rows.append(row)
        if rank == 0:
            print("%-20s %6d x %6d x %6d  sequential %8.1f us  async-TP %8.1f us  error %.1e" % (
                *shape, row["sequential"]["median_us"], row["async_tp"]["median_us"], row["error"]), flush=True)
        torch.cuda.empty_cache()
    if rank == 0 and args.json:
        write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
