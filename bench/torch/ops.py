#!/usr/bin/env python3
"""A GEMM and its collective in PyTorch: mm and NCCL, async tensor parallelism (symmetric memory), and Shingle's ops.

    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/ops.py bench/torch/held_out.json --json ops.json

A suite is what `shingle bench --suite` takes: lists of M, N and K by operator, K of one rank (N for allgather+gemm).
async-TP has allgather+gemm and gemm+reducescatter. The ops choose as a user's would: shingle.torch.warmup measures
the fastest way of each shape first.

Runs are single shots of all ways in turn, launched while the device sleeps so that the host's time is not in them, with
idle time between. With --graph each way is a CUDA graph of ten calls on ten weights, as in decoding. The median is of
the slowest rank of each run. All results are compared with those of mm and NCCL before they are timed.
"""
import argparse
import itertools
import json
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from shingle import torch as st
from shingle.torch.choices import PREDICTED
from shingle.torch.warming import forced

from record import join, mean_and_least, quartiles, slowest_us, write_record

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
COPIES = 10  # calls in a graph
BOUND = 1e-2  # of the relative error: results differ in roundings to bf16


def shapes(suite, world):
    for entry in suite["shapes"]:
        sides = (v if isinstance(v, list) else [v] for v in (entry["m"], entry["n"], entry["k"]))
        for m, n, k in itertools.product(*sides):
            if m % world == 0:
                yield entry["op"], m, n, k


def ways(op, m, n, k, world, group):
    """The ways to compute an operator, as functions of a weight [n, k]. mm and NCCL comes first."""
    if op == "allgather+gemm":
        shard, rows = torch.randn(m // world, k, **BF16), torch.empty(m, k, **BF16)

        def one_after_the_other(weight):
            dist.all_gather_into_tensor(rows, shard)
            return rows @ weight.t()

        return {"sequential": one_after_the_other,
                "async_tp": lambda weight: torch.ops.symm_mem.fused_all_gather_matmul(
                    shard, [weight.t()], gather_dim=0, group_name=group)[1][0],
                "shingle": lambda weight: st.all_gather_gemm(shard, [weight])[0]}
    x = torch.randn(m, k, **BF16)
    if op == "gemm+allreduce":

        def mm_and_all_reduce(weight):
            out = x @ weight.t()
            dist.all_reduce(out)
            return out

        return {"sequential": mm_and_all_reduce, "shingle": lambda weight: st.gemm_all_reduce(x, weight)}
    mine = torch.empty(m // world, n, **BF16)

    def mm_and_reduce_scatter(weight):
        dist.reduce_scatter_tensor(mine, x @ weight.t())
        return mine

    return {"sequential": mm_and_reduce_scatter,
            "async_tp": lambda weight: torch.ops.symm_mem.fused_matmul_reduce_scatter(
                x, weight.t(), "sum", scatter_dim=0, group_name=group),
            "shingle": lambda weight: st.gemm_reduce_scatter(x, weight)}


def captured(run, weights):
    """A graph of one call for each weight."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [run(weight) for weight in weights]  # results stay: no call may overwrite one of another
    graph.outs = outs
    return graph


def measure(shape, world, group, args):
    op, m, n, k = shape
    runs = ways(op, m, n, k, world, group)
    weights = [torch.randn(n, k, **BF16) for _ in range(COPIES if args.graph else 1)]
    results = {name: run(weights[0]).float().clone() for name, run in runs.items()}
    reference, errors = results["sequential"], {}
    for name, result in results.items():
        errors[name] = ((result - reference).norm() / reference.norm()).item()
        assert errors[name] <= BOUND, (shape, name, errors)
    if args.graph:
        runs.pop("async_tp", None)
    calls = {name: (captured(run, weights).replay if args.graph else lambda run=run: run(weights[0]))
             for name, run in runs.items()}
    samples = {name: [] for name in runs}
    for turn in range(args.repeat + 2):
        for name, call in calls.items():
            time.sleep(args.idle_ms / 1e3)
            us = slowest_us(call) / len(weights)
            if turn >= 2:  # the first two warm up
                samples[name].append(us)
    return {"op": op, "m": m, "n": n, "k": k, "world": world, "error": errors["shingle"],
            **{name: quartiles(taken) for name, taken in samples.items()}}


def tune(suite, world, group):
    """Warms up each (op, n, k) of the suite, so that calls take the fastest mechanism of their size."""
    largest = {}
    for op, m, n, k in shapes(suite, world):
        largest[op, n, k] = max(m, largest.get((op, n, k), 0))
    st.configure(max_m=max(largest.values()))
    for (op, n, k), m in largest.items():
        run, weight = ways(op, m, n, k, world, group)["shingle"], torch.randn(n, k, **BF16)
        with forced(PREDICTED):
            st.warmup(lambda: run(weight))


def say_how_fast(rows):
    """Prints geometric means over mm and NCCL, and over async-TP, and the least of both."""
    for theirs in ("sequential", "async_tp"):
        ratios = [row[theirs]["median_us"] / row["shingle"]["median_us"] for row in rows if theirs in row]
        if ratios:
            print(f"over {theirs}: {mean_and_least(ratios)}, of {len(ratios)} shapes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite")
    parser.add_argument("--graph", action="store_true", help="measure CUDA graphs of ten calls")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--idle-ms", type=float, default=20)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    rank, world, group = join()
    symmetric_memory.enable_symm_mem_for_group(group)
    torch.manual_seed(rank + 1)
    with open(args.suite, encoding="utf-8") as file:
        suite = json.load(file)
    rows = []
    with torch.inference_mode():
        tune(suite, world, group)
        for shape in shapes(suite, world):
            row = measure(shape, world, group, args)
            rows.append(row)
            if rank == 0:
                print("%-20s %6d x %6d x %6d" % shape, *(
                    f"{name} {row[name]['median_us']:.1f} us" for name in ("sequential", "async_tp", "shingle")
                    if name in row), f"error {row['error']:.1e}", flush=True)
            torch.cuda.empty_cache()
    if rank == 0:
        say_how_fast(rows)
        if args.json:
            write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms, counters=st.counters())
    torch.cuda.synchronize()
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
