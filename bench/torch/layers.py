#!/usr/bin/env python3
"""Prefill and training steps of Llama-3 layers under tensor parallelism: how much communication Shingle's ops hide.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/layers.py --json layers.json

Each case is a CUDA graph of four layers with random weights, in three ways: mm and NCCL, Shingle's ops, and without
communication. Forms: `reduce` (all-reduce), `norm` (all-reduce, then residual and RMSNorm in one kernel: torch.compile's,
or that of Shingle's op), `sequence` (all-gather and reduce-scatter, activations sharded by rows; prefill or training).
`hidden` is (t_nccl - t_shingle) / (t_nccl - t_without). Runs take turns, with idle time between; the median is of the
slowest rank of each run. Results and gradients of Shingle are compared with those of NCCL before they are timed.
"""
import argparse
import functools
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.warming import forced

from record import join, quartiles, slowest_us, write_record

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
LAYERS, HEAD = 4, 128
MODELS = {"llama-3-8b": (4096, 14336, 32, 8), "llama-3-70b": (8192, 28672, 64, 8)}
EPS = 1e-5
BOUND = 3e-2  # of the relative error: four layers of roundings to bf16


class Gather(torch.autograd.Function):
    """What an all-gather returns, without communication: rows that are already there."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.own = x.shape[0]
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx, grad):
        return grad[: ctx.own], None


class Scatter(torch.autograd.Function):
    """What a reduce-scatter returns, without communication: own rows of this rank's summand."""

    @staticmethod
    def forward(ctx, x, rows, own):
        ctx.rows = rows
        return x[:own].clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.rows, None, None


@torch.compile(dynamic=False)
def add_norm(x, residual, weight):
    total = x + residual
    return F.rms_norm(total, total.shape[-1:], weight, EPS), total


class Communication:
    """The products next to collectives of one form: `up(x, w)` before attention and MLP, `down(x, w)` after them."""

    def __init__(self, form, own=None, rows=None, fused=False):
        self.form, self.own, self.rows = form, own, rows  # rows: stand for gathered ones where nothing communicates
        self.fused = fused  # an op for all-reduce, residual and norm

    def down_norm(self, x, w, residual, weight):
        """(RMSNorm of the total, total), the total being down(x, w) + residual."""
        if self.fused:
            return st.gemm_all_reduce(x, w, residual=residual, norm_weight=weight, eps=EPS)
        return add_norm(self.down(x, w), residual, weight)

    def up(self, x, w):
        if self.form != "sequence":
            return x @ w.t() if self.rows is not None else st.replicated_gemm(x, w)
        return Gather.apply(x, self.rows) @ w.t() if self.rows is not None else st.all_gather_gemm(x, [w])[0]

    def down(self, x, w):
        if self.rows is None:
            return (st.gemm_reduce_scatter if self.form == "sequence" else st.gemm_all_reduce)(x, w)
        return x @ w.t() if self.form != "sequence" else Scatter.apply(x @ w.t(), self.rows, self.own)


def make_layer(model, world):
    """Weights of this rank: qkv, out, gate and up, down."""
    hidden, inner, heads, kv_heads = MODELS[model]
    shapes = (((heads + 2 * kv_heads) * HEAD // world, hidden), (hidden, heads * HEAD // world),
              (2 * inner // world, hidden), (hidden, inner // world))
    return [(torch.randn(shape, **BF16) * 0.02).requires_grad_() for shape in shapes]


def attend(qkv, model, world):
    _, _, heads, kv_heads = MODELS[model]
    heads, kv_heads, rows = heads // world, kv_heads // world, qkv.shape[0]
    q, k, v = (part.view(1, rows, -1, HEAD).transpose(1, 2)
               for part in qkv.split([heads * HEAD, kv_heads * HEAD, kv_heads * HEAD], 1))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(rows, heads * HEAD)


def prefill(x, layers, model, world, communication):
    for qkv, out, up, down in layers:
        attended = attend(communication.up(F.rms_norm(x, x.shape[-1:]), qkv), model, world)
        x = x + communication.down(attended, out)
        gate, value = communication.up(F.rms_norm(x, x.shape[-1:]), up).chunk(2, 1)
        x = x + communication.down(F.silu(gate) * value, down)
    return x


@functools.cache
def norm_weight(hidden):
    return torch.ones(hidden, **BF16)


def prefill_normed(x, layers, model, world, communication):
    weight = norm_weight(x.shape[-1])
    normed = F.rms_norm(x, x.shape[-1:], weight, EPS)
    for qkv, out, up, down in layers:
        attended = attend(communication.up(normed, qkv), model, world)
        normed, x = communication.down_norm(attended, out, x, weight)
        gate, value = communication.up(normed, up).chunk(2, 1)
        normed, x = communication.down_norm(F.silu(gate) * value, down, x, weight)
    return x, normed


def train(x, layers, model, world, communication):
    """Forward and backward. Returns the result and all gradients."""
    out = prefill(x, layers, model, world, communication)
    wanted = [x, *(weight for layer in layers for weight in layer)]
    return out, *torch.autograd.grad(out, wanted, torch.ones_like(out))


def captured(step, choice):
    """A graph of the step, after runs that declare and warm up. choice: of all calls; None: as the table says."""
    stream = torch.cuda.Stream()
    with forced(choice), torch.cuda.stream(stream):
        for _ in range(2):
            step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            graph.outs = step()
    return graph


def check(graphs, what):
    for name in ("nccl", "shingle"):
        graphs[name].replay()
    torch.cuda.synchronize()
    pairs = (torch.utils._pytree.tree_leaves(graphs[name].outs) for name in ("shingle", "nccl"))
    errors = [((got.float() - wanted.float()).norm() / wanted.float().norm()).item() for got, wanted in zip(*pairs)]
    assert max(errors) <= BOUND, (what, errors)
    return max(errors)


def measure(model, rows, form, backward, world, args):
    torch.compiler.reset()  # each case compiles for its shape; there is a limit to recompilations
    torch.manual_seed(dist.get_rank())
    layers = [make_layer(model, world) for _ in range(LAYERS)]
    own = rows // world if form == "sequence" else rows
    hidden = MODELS[model][0]
    torch.manual_seed(1 + (dist.get_rank() if form == "sequence" else 0))
    x = torch.randn(own, hidden, **BF16).requires_grad_()
    without = Communication(form, own, torch.randn(rows, hidden, **BF16))
    forward = prefill_normed if form == "norm" else prefill
    step = functools.partial(train if backward else forward, x, layers, model, world)
    fused = functools.partial(Communication, form, fused=form == "norm")
    with torch.set_grad_enabled(backward):
        with forced(PREDICTED):
            st.warmup(lambda: step(fused()), least_m=256)
        graphs = {"nccl": captured(lambda: step(Communication(form)), LIBRARY),
                  "shingle": captured(lambda: step(fused()), None),
                  "without": captured(lambda: step(without), None)}
    error = check(graphs, (model, rows, form, backward))
    samples = {name: [] for name in graphs}
    for turn in range(args.repeat + 2):
        for name, graph in graphs.items():
            time.sleep(args.idle_ms / 1e3)
            us = slowest_us(graph.replay) / LAYERS
            if turn >= 2:  # the first two warm up
                samples[name].append(us)
    torch.cuda.synchronize()
    for graph in graphs.values():
        graph.reset()
    nccl, ours, bare = (statistics.median(samples[name]) for name in ("nccl", "shingle", "without"))
    return {"model": model, "m": rows, "form": form, "pass": "training" if backward else "prefill", "world": world,
            "error": error, "exposed": 1 - bare / nccl, "hidden": (nccl - ours) / (nccl - bare),
            **{name: quartiles(taken) for name, taken in samples.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rows", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--forms", nargs="+", default=["reduce", "sequence"], choices=("reduce", "norm", "sequence"))
    parser.add_argument("--training", action="store_true", help="forward and backward instead of prefill")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--idle-ms", type=float, default=20)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    if args.training and "norm" in args.forms:
        parser.error("--training has no form norm")
    rank, world, _ = join()
    st.configure(max_m=max(args.rows))
    rows = []
    for model in args.models:
        for form in args.forms:
            for m in args.rows:
                row = measure(model, m, form, args.training, world, args)
                rows.append(row)
                if rank == 0:
                    print("%-12s %-8s %-8s M=%-5d" % (model, row["pass"], form, m), *(
                        f"{name} {row[name]['median_us']:.0f} us" for name in ("nccl", "shingle", "without")),
                        "a layer; exposed %.1f%%, hidden %.2f, error %.1e" % (
                            100 * row["exposed"], row["hidden"], row["error"]), flush=True)
                torch.cuda.empty_cache()
    if rank == 0 and args.json:
        write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms, layers=LAYERS)
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
