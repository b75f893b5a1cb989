#!/usr/bin/env python3
"""GEMM + all-reduce of few rows, with and without residual and RMSNorm, in CUDA graphs: PyTorch, FlashInfer, Shingle.

    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/decode.py --json decode.json

PyTorch sums by NCCL or by its one-shot and two-shot kernels on symmetric memory, and normalises in a kernel that
torch.compile makes. FlashInfer's `allreduce_fusion` sums, adds the residual and normalises in one kernel after the
same mm. It is left out, and the program says why, unless `flashinfer` can be imported and its comm module loads.
Shingle's ops run by the mechanism `low-latency`. Each graph has ten calls on ten weights, so that weights come from
memory. Ten replays run back to back, so that the ranks' different starts hardly count. Times are those of a call, of
the slowest rank. All results are compared with those of mm and NCCL before they are timed.

`allreduce+norm` is the collective alone, with residual and RMSNorm, of a context's operator `allreduce`.
"""
import argparse
import itertools
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from shingle import torch as st
from shingle.context import Context
from shingle.torch import contexts
from shingle.torch.groups import find_group
from shingle.torch.warming import forced

import flashinfer_sums
from record import join, mean_and_least, quartiles, slowest_us, write_record

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
COPIES = 10  # calls in a graph
REPLAYS = 10  # of a graph, back to back
BOUND = 1e-2  # of the relative error: results differ in roundings to bf16
EPS = 1e-5


def sums(group, m, n):
    """PyTorch's ways to sum a matrix over ranks: functions of one that writes the matrix to where it is told."""
    buffer = symmetric_memory.empty(m, n, **BF16)
    symmetric_memory.rendezvous(buffer, group)

    def nccl(write):
        out = write(torch.empty(m, n, **BF16))
        dist.all_reduce(out)
        return out

    def one_shot(write):
        return torch.ops.symm_mem.one_shot_all_reduce(write(buffer), "sum", group)

    def two_shot(write):
        return torch.ops.symm_mem.two_shot_all_reduce_(write(buffer), "sum", group)

    return {"nccl": nccl, "one_shot": one_shot, "two_shot": two_shot}


@torch.compile(fullgraph=True, dynamic=False)
def add_and_normalise(x, residual, weight):
    total = x.float() + residual.float()
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS)
    return (total * scale * weight.float()).to(x.dtype), total.to(x.dtype)


def ways(group, m, n, k, norm, flashinfer=None):
    """The ways to compute an operator, as functions of a weight [n, k]."""
    x, residual, weight = torch.randn(m, k, **BF16), torch.randn(m, n, **BF16), torch.randn(n, **BF16)
    found = {"gemm": lambda w: x @ w.t()}
    for name, total in sums(group, m, n).items():
        product = lambda w, total=total: total(lambda out: torch.mm(x, w.t(), out=out))
        found[name] = (lambda w, product=product: add_and_normalise(product(w), residual, weight)) if norm else product
    if flashinfer and norm:
        found["flashinfer"] = lambda w: flashinfer.add_and_normalise(torch.mm(x, w.t()), residual, weight, EPS)
    elif flashinfer:
        found["flashinfer"] = lambda w: flashinfer.sum(torch.mm(x, w.t()))
    if norm:
        found["shingle"] = lambda w: st.gemm_all_reduce(x, w, residual=residual, norm_weight=weight, eps=EPS)
    else:
        found["shingle"] = lambda w: st.gemm_all_reduce(x, w)
    return found


class Alone:
    """The collective alone, with residual and RMSNorm: an operator of a context of this program."""

    def __init__(self, rank, group, largest, n):
        self.world = contexts.make_world(find_group(group), torch.cuda.current_device())
        self.context = Context(self.world)
        op = self.context.declare("allreduce", m=largest, n=n, k=n, dtype="bf16", norm=True, residual=True,
                                  norm_epsilon=EPS, mechanism="low-latency")
        self.call = op.prepare([(rank, role) for role in ("a", "residual", "norm_weight", "out", "sum")], streams=1)

    def ways(self, group, m, n, flashinfer=None):
        """As `ways`, as functions of a part [m, n] of the sum. `copy`: what PyTorch's ways do to their own memory."""
        residual, weight = torch.randn(m, n, **BF16), torch.randn(n, **BF16)
        found = {"copy": lambda part: torch.empty_like(part).copy_(part)}
        for name, total in sums(group, m, n).items():
            found[name] = lambda part, total=total: add_and_normalise(total(lambda out: out.copy_(part)), residual, weight)
        if flashinfer:
            found["flashinfer"] = lambda part: flashinfer.add_and_normalise(part, residual, weight, EPS)

        def low_latency(part):
            outs = torch.empty_like(part), torch.empty_like(part)
            matrices = [(t.data_ptr(), m if t.dim() == 2 else 1, 0) for t in (part, residual, weight, *outs)]
            self.call(m, matrices, (torch.cuda.current_stream().cuda_stream,))
            return outs

        return {**found, "shingle": low_latency}

    def close(self):
        self.context.close()
        self.world.close()


def captured(run, weights):
    """A graph of one call for each weight. Results stay: no call may overwrite one of another."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.outs = [run(weight) for weight in weights]
    return graph


def first(result):
    return (result[0] if isinstance(result, tuple) else result).float().clone()


def timed(graphs, args, calls, replays):
    """Times of a call in microseconds, by way: the graphs, of `calls` calls each, take turns."""
    samples = {name: [] for name in graphs}
    for turn in range(args.repeat + 2):
        for name, graph in graphs.items():
            time.sleep(args.idle_ms / 1e3)
            us = slowest_us(lambda graph=graph: [graph.replay() for _ in range(replays)]) / (calls * replays)
            if turn >= 2:  # the first two warm up
                samples[name].append(us)
    return samples


def measure(op, runs, weights, world, m, n, k, args):
    """Times of some ways, after their results are compared. weights: what each call of a graph takes."""
    results = {name: first(run(weights[0])) for name, run in runs.items()}
    reference = results["nccl"]
    for name, result in results.items():
        error = ((result - reference).norm() / reference.norm()).item()
        assert name in ("gemm", "copy") or error <= BOUND, (op, m, n, k, name, error)
    graphs = {name: captured(run, weights) for name, run in runs.items()}
    samples = timed(graphs, args, COPIES, REPLAYS)
    return {"op": op, "m": m, "n": n, "k": k, "world": world,
            "error": ((results["shingle"] - reference).norm() / reference.norm()).item(),
            **{name: quartiles(taken) for name, taken in samples.items()}}


def best_of_torch(row):
    return min(row[name]["median_us"] for name in ("nccl", "one_shot", "two_shot"))


def print_speedups(measured):
    """Prints Shingle's speed-up over the best of PyTorch, and over FlashInfer where it was timed, by op."""
    for op in dict.fromkeys(row["op"] for row in measured):
        rows = [row for row in measured if row["op"] == op]
        rivals = {"the best of PyTorch": list(map(best_of_torch, rows))}
        if "flashinfer" in rows[0]:
            rivals["FlashInfer"] = [row["flashinfer"]["median_us"] for row in rows]
        for rival, times in rivals.items():
            ratios = [us / row["shingle"]["median_us"] for us, row in zip(times, rows)]
            print(f"{op} over {rival}: {mean_and_least(ratios)}, of {len(ratios)} shapes")


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
    measured, alone = [], Alone(rank, group, max(rows), args.n)
    flashinfer, lack = flashinfer_sums.find(rank, world, max(rows), args.n)
    if lack and rank == 0:
        print(f"without FlashInfer: {lack}", flush=True)

    def keep(op, runs, weights, m, k):
        measured.append(row := measure(op, runs, weights, world, m, args.n, k, args))
        if rank == 0:
            times = "  ".join(f"{name} {row[name]['median_us']:5.1f}" for name in runs)
            print(f"{op:19} {m:4}x{args.n}x{k:5}  {times}  us, "
                  f"{best_of_torch(row) / row['shingle']['median_us']:.2f}x", flush=True)

    with torch.inference_mode(), forced(args.mechanism):
        for op in ("gemm+allreduce", "gemm+allreduce+norm"):
            for k, m in itertools.product(map(int, args.k.split(",")), rows):
                weights = [torch.randn(args.n, k, **BF16) * k**-0.5 for _ in range(COPIES)]
                keep(op, ways(group, m, args.n, k, op.endswith("norm"), flashinfer), weights, m, k)
        for m in rows:
            parts = [torch.randn(m, args.n, **BF16) for _ in range(COPIES)]
            keep("allreduce+norm", alone.ways(group, m, args.n, flashinfer), parts, m, 0)
    alone.close()
    if flashinfer:
        flashinfer.close()
    if rank == 0:
        print_speedups(measured)
        if args.json:
            write_record(args.json, measured, **({"flashinfer": flashinfer.version} if flashinfer else {}))
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
