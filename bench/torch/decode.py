#!/usr/bin/env python3
"""GEMM + all-reduce of few rows, with and without residual and RMSNorm: PyTorch's ways and Shingle's, in CUDA graphs.

    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/decode.py --json decode.json

PyTorch sums by NCCL or by its one-shot and two-shot kernels on symmetric memory, and normalises in a kernel that
torch.compile makes. Shingle's ops run by the mechanism `low-latency`. Each graph has ten calls on ten weights, so that
weights come from memory. Ten replays run back to back, so that the ranks' different starts hardly count. Times are
those of a call, of the slowest rank. All results are compared with those of mm and NCCL before they are timed.

`allreduce+norm` is the collective alone, with residual and RMSNorm, of a context's operator `allreduce`.
"""
import argparse
import math
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from shingle import torch as st
from shingle.torch.warming import forced

from record import join, quartiles, slowest_us, write_record

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
COPIES = 10  # calls in a graph
REPLAYS = 10  # of a graph, back to back
BOUND = 1e-2  # of the relative error: results differ in roundings to bf16
EPS = 1e-5


def sums(group, m, n):
    """PyTorch's ways to compute x · wᵀ summed over ranks, as functions of x and w."""
    buffer = symmetric_memory.empty(m, n, **BF16)
    symmetric_memory.rendezvous(buffer, group)

    def nccl(x, w):
        out = x @ w.t()
        dist.all_reduce(out)
        return out

    def one_shot(x, w):
        return torch.ops.symm_mem.one_shot_all_reduce(torch.mm(x, w.t(), out=buffer), "sum", group)

    def two_shot(x, w):
        return torch.ops.symm_mem.two_shot_all_reduce_(torch.mm(x, w.t(), out=buffer), "sum", group)

    return {"nccl": nccl, "one_shot": one_shot, "two_shot": two_shot}


@torch.compile(fullgraph=True, dynamic=False)
def add_and_normalise(x, residual, weight):
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS)
    return (total * scale * weight.float()).to(x.dtype), total.to(x.dtype)


def ways(group, m, n, k, norm):
    """The ways to compute an operator, as functions of a weight [n, k]."""
    x, residual, weight = torch.randn(m, k, **BF16), torch.randn(m, n, **BF16), torch.randn(n, **BF16)
    found = {"gemm": lambda w: x @ w.t()}
    for name, total in sums(group, m, n).items():
        if norm:
            found[name] = lambda w, total=total: add_and_normalise(total(x, w), residual, weight)
        else:
            found[name] = lambda w, total=total: total(x, w)
    if norm:
        found["shingle"] = lambda w: st.gemm_all_reduce(x, w, residual=residual, norm_weight=weight, eps=EPS)
    else:
        found["shingle"] = lambda w: st.gemm_all_reduce(x, w)
    return found


def captured(run, weights):
    """A graph of one call for each weight. Results stay: no call may overwrite one of another."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.outs = [run(weight) for weight in weights]
    return graph


def first(result):
    return (result[0] if isinstance(result, tuple) else result).float().clone()


def measure(group, world, m, n, k, norm, args):
    runs = ways(group, m, n, k, norm)
    weights = [torch.randn(n, k, **BF16) * k**-0.5 for _ in range(COPIES)]
    results = {name: first(run(weights[0])) for name, run in runs.items()}
    reference = results["nccl"]
    for name, result in results.items():
        error = ((result - reference).norm() / reference.norm()).item()
        assert name == "gemm" or error <= BOUND, (m, n, k, norm, name, error)
    graphs = {name: captured(run, weights) for name, run in runs.items()}
    samples = {name: [] for name in runs}
    for turn in range(args.repeat + 2):
        for name, graph in graphs.items():
            time.sleep(args.idle_ms / 1e3)
            us = slowest_us(lambda graph=graph: [graph.replay() for _ in range(REPLAYS)]) / (COPIES * REPLAYS)
            if turn >= 2:  # the first two warm up
                samples[name].append(us)
    return {"op": "gemm+allreduce" + ("+norm" if norm else ""), "m": m, "n": n, "k": k, "world": world,
            "error": ((results["shingle"] - reference).norm() / reference.norm()).item(),
            **{name: quartiles(taken) for name, taken in samples.items()}}


def best_of_torch(row):
    return min(row[name]["median_us"] for name in ("nccl", "one_shot", "two_shot"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,16,64,128,256")
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--k", default="1024,3584,7168")
    parser.add_argument("--mechanism", default="low-latency")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--idle-ms", type=float, default=5)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    rank, world, group = join()
    torch.manual_seed(rank)
    rows = [int(m) for m in args.rows.split(",")]
    st.configure(max_m=max(rows))
    measured = []
    with torch.inference_mode(), forced(args.mechanism):
        for norm in (False, True):
            for k in map(int, args.k.split(",")):
                for m in rows:
                    measured.append(row := measure(group, world, m, args.n, k, norm, args))
                    if rank == 0:
                        times = "  ".join(f"{name} {row[name]['median_us']:5.1f}" for name in
                                          ("gemm", "nccl", "one_shot", "two_shot", "shingle"))
                        print(f"{row['op']:19} {m:4}x{args.n}x{k:5}  {times}  us, "
                              f"{best_of_torch(row) / row['shingle']['median_us']:.2f}x", flush=True)
    if rank == 0:
        for op in ("gemm+allreduce", "gemm+allreduce+norm"):
            ratios = [best_of_torch(row) / row["shingle"]["median_us"] for row in measured if row["op"] == op]
            print(f"{op} over the best of PyTorch: geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, "
                  f"least {min(ratios):.3f}, of {len(ratios)} shapes")
        if args.json:
            write_record(args.json, measured)
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
