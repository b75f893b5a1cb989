#!/usr/bin/env python3
"""A decode step of Llama-3 layers under tensor parallelism, as one CUDA graph: PyTorch's ways and Shingle's op.

    export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/decode_layer.py --json decode_layer.json

A graph has four layers with weights and caches of their own: qkv, attention of one new token a sequence over `--context`
tokens, out + all-reduce + residual + RMSNorm, gate and up, SwiGLU, down + all-reduce + residual + RMSNorm. Rotary
embeddings and the append to the cache are left out. All ways share the products, the attention and SwiGLU; they differ
in what follows `out` and `down`, as in decode.py. Times are of a layer, of the slowest rank. Results are compared with
those of NCCL before they are timed.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shingle import torch as st
from shingle.torch.warming import forced

from decode import BF16, EPS, add_and_normalise, best_of_torch, sums, timed
from layers import HEAD, MODELS
from record import join, mean_and_least, quartiles, write_record

LAYERS = 4
REPLAYS = 5  # of a graph, back to back
BOUND = 3e-2  # of the relative error: four layers of roundings to bf16


class Layer:
    """Weights and caches of a layer on this rank."""

    def __init__(self, model, m, context, world):
        hidden, inner, heads, kv_heads = MODELS[model]
        self.heads, self.kv_heads = heads // world, kv_heads // world
        weight = lambda *shape: torch.randn(shape, **BF16) * shape[1] ** -0.5
        self.qkv = weight((self.heads + 2 * self.kv_heads) * HEAD, hidden)
        self.out, self.down = weight(hidden, self.heads * HEAD), weight(hidden, inner // world)
        self.gate_up = weight(2 * inner // world, hidden)
        self.norms = [torch.rand(hidden, **BF16) + 0.5 for _ in range(2)]
        self.keys, self.values = (torch.randn(m, self.kv_heads, context, HEAD, **BF16) for _ in range(2))

    def attend(self, x):
        query = (x @ self.qkv.t())[:, : self.heads * HEAD].view(-1, self.heads, 1, HEAD)
        return F.scaled_dot_product_attention(query, self.keys, self.values, enable_gqa=True).reshape(x.shape[0], -1)


@torch.compile(fullgraph=True, dynamic=False)
def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def ways(group, m, hidden):
    """Functions of an input, a weight, a residual and a norm's weight: the normalised sum, and the sum."""
    def of(total):
        return lambda x, w, residual, norm: add_and_normalise(
            total(lambda out: torch.mm(x, w.t(), out=out)), residual, norm)

    found = {name: of(total) for name, total in sums(group, m, hidden).items()}
    found["shingle"] = lambda x, w, residual, norm: st.gemm_all_reduce(
        x, w, residual=residual, norm_weight=norm, eps=EPS)
    return found


def run(layers, x, residual, reduce):
    for layer in layers:
        x, residual = reduce(layer.attend(x), layer.out, residual, layer.norms[0])
        x, residual = reduce(swiglu(x @ layer.gate_up.t()), layer.down, residual, layer.norms[1])
    return x, residual


def measure(group, model, m, world, args):
    hidden = MODELS[model][0]
    layers = [Layer(model, m, args.context, world) for _ in range(LAYERS)]
    x, residual = (torch.randn(m, hidden, **BF16) for _ in range(2))
    dist.broadcast(x, 0)  # these are the same on all ranks
    dist.broadcast(residual, 0)
    for layer in layers:
        for norm in layer.norms:
            dist.broadcast(norm, 0)
    results, graphs = {}, {}
    reduces = ways(group, m, hidden)  # they own memory that the graphs use
    for name, reduce in reduces.items():
        results[name] = run(layers, x, residual, reduce)[0].float().clone()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            graphs[name].outs = run(layers, x, residual, reduce)
    errors = {name: ((of - results["nccl"]).norm() / results["nccl"].norm()).item() for name, of in results.items()}
    assert max(errors.values()) <= BOUND, (model, m, errors)
    samples = timed(graphs, args, LAYERS, REPLAYS)
    return {"model": model, "m": m, "context": args.context, "world": world, "error": errors["shingle"],
            **{name: quartiles(taken) for name, taken in samples.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", default="1,16,64,256")
    parser.add_argument("--context", type=int, default=512, help="tokens in the cache of each sequence")
    parser.add_argument("--mechanism", default="low-latency")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--idle-ms", type=float, default=5)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    rank, world, group = join()
    torch.manual_seed(rank)
    rows = [int(m) for m in args.rows.split(",")]
    st.configure(max_m=max(rows))
    measured, speedups = [], []
    with torch.inference_mode(), forced(args.mechanism):
        for model in args.models.split(","):
            for m in rows:
                measured.append(row := measure(group, model, m, world, args))
                times = {name: row[name]["median_us"] for name in ("nccl", "one_shot", "two_shot", "shingle")}
                speedups.append(best_of_torch(row) / times["shingle"])
                if rank == 0:
                    print(f"{model:12} M = {m:3}  " + "  ".join(f"{name} {us:6.1f}" for name, us in times.items())
                          + f"  us, {speedups[-1]:.3f}x", flush=True)
    if rank == 0:
        print(f"a layer over the best of PyTorch: {mean_and_least(speedups)}")
        if args.json:
            write_record(args.json, measured)
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
