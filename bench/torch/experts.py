#!/usr/bin/env python3
"""Experts on several ranks: dispatch, combine and the whole layer, in PyTorch and by Shingle's operators.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/experts.py --json experts.json

By default a rank has some of the experts. `torch` permutes tokens by expert, exchanges them with all_to_all_single,
permutes them again, multiplies with torch._grouped_mm, and goes back the same way. With `--sliced` a rank has a slice
of every expert. `torch` then gathers all tokens, copies each once for each of its experts, multiplies, sums the choices
of each token, and scatters the sums. With `--replicated` all ranks have the same tokens as well, as in tensor-parallel
inference. Nothing is gathered, and NCCL's all-reduce sums. Only the layer is measured. The device routes Shingle's
calls, as in a server.

What surrounds the products is compiled, for each case anew: compiled for other numbers of rows it can be slow. Split
sizes and permutations are made before the clock starts, and so are the tables of Shingle's calls: all know the routing.
`without` is `torch` without communication, on as many rows. `hidden` is (t_torch - t_shingle) / (t_torch - t_without):
above 1 where Shingle's products are faster than PyTorch's, too.

`vllm` is the layer by vLLM's Triton kernel `fused_experts`, as vLLM runs it without DeepEP. NCCL gathers all tokens and
their routing, the kernel sums what the rank's experts add to each token, and NCCL scatters the sums. vLLM sorts the
routing while the clock runs. Its tiles are the fastest of those that it chooses and of some that it ships. `vllm` is
left out, and the program says why, unless vLLM can be imported and its kernels load. With `--replicated` it has no
gather, and its sums are all-reduced.

A rank has `tokens` tokens. Their experts are uniform, or follow Zipf's law; a token has no expert twice. Times are
single shots of the slowest rank. All results are compared with those of torch before they are timed.
"""
import argparse
import itertools
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shingle.context import Context, Routing
from shingle.torch import contexts
from shingle.torch.groups import find_group

import vllm_experts
from record import join, mean_and_least, require_close, sampled, write_record

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
BOUND = 1e-2  # of the relative error: results differ in roundings to bf16
# hidden size, width of an expert, experts, of a token
MODELS = {"mixtral-8x7b": (4096, 14336, 8, 2), "deepseek-moe-16b": (2048, 1408, 64, 6)}
PARTS = "dispatch", "combine", "layer"


@torch.compile(dynamic=False)
def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


@torch.compile(dynamic=False)
def weighted_sum(rows, weights):
    return (rows.float() * weights.t().unsqueeze(-1)).sum(0).to(rows.dtype)


def draw_experts(tokens, experts, topk, zipf, generator):
    """Experts of each token, [tokens, topk] on the CPU."""
    share = 1 / torch.arange(1, experts + 1) if zipf else torch.ones(experts)
    return torch.multinomial(share.expand(tokens, -1), topk, generator=generator)


class Experts:
    """A case on this rank: what all ways to split experts share."""

    PARTS = PARTS  # that are measured
    capacity = 0  # 0: the host routes Shingle's calls

    def __init__(self, model, tokens, zipf, rank, world):
        self.hidden, self.inner, self.experts, self.topk = MODELS[model]
        self.tokens, self.rank, self.world = tokens, rank, world
        generator = torch.Generator().manual_seed(7)
        self.of_all = [draw_experts(tokens, self.experts, self.topk, zipf, generator).t().flatten()
                       for _ in range(world)]  # row j · tokens + i: choice j of token i
        self.x = torch.randn(tokens, self.hidden, **BF16)
        self.topk_weights = torch.rand(tokens, self.topk, device="cuda")

    def make_weights(self, experts, inner):
        """Weights of some experts, and what `combine` multiplies. `inner`: columns of an expert on this rank."""
        self.columns = inner
        self.up = torch.randn(experts, 2 * inner, self.hidden, **BF16) / math.sqrt(self.hidden)
        self.down = torch.randn(experts, self.hidden, inner, **BF16) / math.sqrt(self.inner)
        self.products = torch.randn(self.rows, inner, **BF16)

    def multiply_up(self, rows):
        return swiglu(torch._grouped_mm(rows, self.up.transpose(-2, -1), self.ends))

    def multiply_down(self, rows):
        return torch._grouped_mm(rows, self.down.transpose(-2, -1), self.ends)

    def operator(self, context, part, mechanism):
        """A function that calls an operator of a context on this case."""
        chains = part == "layer"
        n, k = {"dispatch": (2 * self.columns, self.hidden), "combine": (self.hidden, self.columns),
                "layer": (self.hidden, self.hidden)}[part]  # fmt: skip
        op = context.declare(
            self.OPS[part], m=self.tokens, n=n, k=k, inner=self.columns if chains else 0, dtype="bf16",
            transpose_b=True, activation=None if part == "combine" else "swiglu", experts=self.experts, topk=self.topk,
            capacity=self.capacity, mechanism=mechanism,
        )  # fmt: skip
        first = self.products if part == "combine" else self.x
        out = torch.empty(self.rows, self.columns, **BF16) if part == "dispatch" else torch.empty_like(self.x)
        of = {"a": first, "b": (self.down if part == "combine" else self.up).flatten(0, 1), "out": out}
        if chains:
            of["down"] = self.down.flatten(0, 1)
        if part != "dispatch":
            of["topk_weights"] = self.topk_weights
        m, routing = 0, Routing([to.tolist() for to in self.of_all], experts=self.experts)
        if self.capacity:
            m, routing = self.tokens, None
            of["topk_ids"] = self.of_all[0].view(self.topk, -1).t().to("cuda", torch.int32).contiguous()
            of["dropped"] = torch.empty(1, 2, device="cuda", dtype=torch.int32)
        call = op.prepare([(self.rank, role) for role in of], streams=1)
        matrices = [(t.data_ptr(), t.shape[0], 0) for t in of.values()]

        def run(kept=of):  # the tensors
            call(m, matrices, (torch.cuda.current_stream().cuda_stream,), routing)
            return out

        return run


class WholeExperts(Experts):
    """Each rank has some of the experts."""

    OPS = {"dispatch": "alltoall+grouped-gemm", "combine": "grouped-gemm+alltoall", "layer": "moe"}

    def __init__(self, model, tokens, zipf, rank, world):
        super().__init__(model, tokens, zipf, rank, world)
        own = self.experts // world
        mine = self.of_all[rank]
        by_expert = torch.argsort(mine, stable=True)
        counts = torch.stack([torch.bincount(to, minlength=self.experts) for to in self.of_all])
        to_rank = counts.view(world, world, own).sum(-1)
        self.sent, self.received = to_rank[rank].tolist(), to_rank[:, rank].tolist()
        # Rows arrive by source, then by expert; they are multiplied by expert, then by source.
        here = counts[:, rank * own : (rank + 1) * own]
        expert = torch.cat([torch.arange(own).repeat_interleave(row) for row in here])
        order = torch.argsort(expert, stable=True)
        self.rows = order.numel()
        self.ends = here.sum(0).cumsum(0).to("cuda", torch.int32)
        cuda = lambda index: index.to("cuda")
        self.token_of, self.order = cuda(by_expert % tokens), cuda(order)
        self.back, self.choice = cuda(torch.argsort(order)), cuda(torch.argsort(by_expert))
        self.make_weights(own, self.inner)

    def exchange(self, rows, there):
        out, back = (self.received, self.sent) if there else (self.sent, self.received)
        result = torch.empty(sum(out), rows.shape[1], **BF16)
        dist.all_to_all_single(result, rows, out, back)
        return result

    def torch_way(self, communicates):
        """dispatch, combine and the layer in PyTorch. Without communication rows are made up."""
        made_up = {there: torch.randn(sum(self.received if there else self.sent), self.hidden, **BF16)
                   for there in (True, False)}  # fmt: skip

        def move(rows, there):
            return self.exchange(rows, there) if communicates else made_up[there]

        def dispatch():
            return self.multiply_up(move(self.x[self.token_of], True)[self.order])

        def combine(rows=None):
            rows = self.multiply_down(self.products if rows is None else rows)[self.back]
            rows = move(rows, False)[self.choice].view(self.topk, self.tokens, self.hidden)
            return weighted_sum(rows, self.topk_weights)

        return {"dispatch": dispatch, "combine": combine, "layer": lambda: combine(dispatch())}


class SlicedExperts(Experts):
    """Each rank has a slice of every expert."""

    OPS = {"dispatch": "allgather+grouped-gemm", "combine": "grouped-gemm+reducescatter", "layer": "moe-tp"}

    def __init__(self, model, tokens, zipf, rank, world):
        super().__init__(model, tokens, zipf, rank, world)
        expert = torch.cat(self.of_all)  # by rank of the token, then as in of_all
        order = torch.argsort(expert, stable=True)
        self.rows = order.numel()
        self.ends = torch.bincount(expert, minlength=self.experts).cumsum(0).to("cuda", torch.int32)
        of_rank = self.topk * tokens
        self.token_of = (order // of_rank * tokens + order % tokens).to("cuda")
        back = torch.argsort(order).view(world, self.topk, tokens)
        self.choice = back.transpose(0, 1).flatten().to("cuda")  # by choice, then by token of all ranks
        self.make_weights(self.experts, self.inner // world)

    def gather(self, own):
        gathered = torch.empty(self.world * own.shape[0], *own.shape[1:], device="cuda", dtype=own.dtype)
        dist.all_gather_into_tensor(gathered, own)
        return gathered

    def torch_way(self, communicates):
        """dispatch, combine and the layer in PyTorch. Without communication tokens of others are made up."""
        made_up = {id(own): self.gather(own) for own in (self.x, self.topk_weights)}

        def gather(own):
            return self.gather(own) if communicates else made_up[id(own)]

        def dispatch():
            return self.multiply_up(gather(self.x)[self.token_of])

        def combine(rows=None):
            rows = self.multiply_down(self.products if rows is None else rows)[self.choice]
            sums = weighted_sum(rows.view(self.topk, -1, self.hidden), gather(self.topk_weights))
            if not communicates:
                return sums[: self.tokens]
            out = torch.empty_like(self.x)
            dist.reduce_scatter_tensor(out, sums)
            return out

        return {"dispatch": dispatch, "combine": combine, "layer": lambda: combine(dispatch())}


class ReplicatedExperts(Experts):
    """Each rank has a slice of every expert, and all ranks have the same tokens."""

    OPS = {"layer": "moe+allreduce"}
    PARTS = ("layer",)

    def __init__(self, model, tokens, zipf, rank, world):
        super().__init__(model, tokens, zipf, rank, 1)
        self.world, self.capacity = world, tokens
        for shared in (self.x, self.topk_weights):
            dist.broadcast(shared, 0)
        order = torch.argsort(self.of_all[0], stable=True)
        self.rows = order.numel()
        self.ends = torch.bincount(self.of_all[0], minlength=self.experts).cumsum(0).to("cuda", torch.int32)
        self.token_of, self.choice = (order % tokens).to("cuda"), torch.argsort(order).to("cuda")
        self.make_weights(self.experts, self.inner // world)

    def torch_way(self, communicates):
        def layer():
            rows = self.multiply_down(self.multiply_up(self.x[self.token_of]))[self.choice]
            sums = weighted_sum(rows.view(self.topk, -1, self.hidden), self.topk_weights)
            if communicates:
                dist.all_reduce(sums)
            return sums

        return {"layer": layer}


def measure(model, tokens, zipf, args, group, fused_moe=None):
    rank, world = group.rank, group.size
    torch.compiler.reset()
    kind = ReplicatedExperts if args.replicated else SlicedExperts if args.sliced else WholeExperts
    case = kind(model, tokens, zipf, rank, world)
    shingle_world = contexts.make_world(group, torch.cuda.current_device())
    context = Context(shingle_world)
    theirs, without, rows = case.torch_way(True), case.torch_way(False), []
    for name in case.PARTS:
        runs = {"torch": theirs[name], "without": without[name],
                **{mechanism: case.operator(context, name, mechanism) for mechanism in args.mechanisms}}
        if fused_moe and name == "layer":
            layer = vllm_experts.ReplicatedLayer if args.replicated else vllm_experts.VllmLayer
            runs["vllm"] = layer(fused_moe, case)
        reference = runs["torch"]()
        for way in runs:
            if way != "without":
                require_close(runs[way](), reference, BOUND, (model, name, tokens, zipf, way))
        if "vllm" in runs:
            runs["vllm"].tune()
        times = sampled(runs, args)
        best = min(times[mechanism]["median_us"] for mechanism in args.mechanisms)
        took, least = times["torch"]["median_us"], times["without"]["median_us"]
        rows.append({"model": model, "op": name, "tokens": tokens, "routing": "zipf" if zipf else "uniform",
                     "hidden": round((took - best) / (took - least), 3), **times})
        if rank == 0:
            print(f"{model} {name} {tokens} tokens {rows[-1]['routing']}: ",
                  *(f"{way} {of['median_us']:.0f} us" for way, of in times.items()),
                  f"{took / best:.3f}x hidden {rows[-1]['hidden']:.2f}", flush=True)
    context.synchronize()
    context.close()
    shingle_world.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 4096, 16384])
    split = parser.add_mutually_exclusive_group()
    split.add_argument("--sliced", action="store_true", help="a rank has a slice of every expert")
    split.add_argument("--replicated", action="store_true", help="the same, and all ranks have the same tokens")
    parser.add_argument("--mechanisms", nargs="+", help="default: sequential, signal and fused")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--idle-ms", type=float, default=20)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    args.cpu = False
    args.mechanisms = args.mechanisms or ["sequential", "signal", "fused"]
    rank, world, name = join()
    torch.manual_seed(rank + 1)
    fused_moe, lack = (None, None) if args.sliced else vllm_experts.find(world)
    if lack and rank == 0:
        print(f"without vLLM: {lack}", flush=True)
    rows = []
    with torch.inference_mode():
        for model, tokens, zipf in itertools.product(args.models, args.tokens, (False, True)):
            rows += measure(model, tokens, zipf, args, find_group(name), fused_moe)
            torch.cuda.empty_cache()
            if rank == 0 and args.json:  # anew after each case
                write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms,
                             **vllm_experts.version_of(fused_moe))
    if rank == 0:
        for op in PARTS:
            ratios = [row["torch"]["median_us"] / min(row[way]["median_us"] for way in args.mechanisms)
                      for row in rows if row["op"] == op]
            if ratios:
                print(f"{op}: {mean_and_least(ratios)}")
        if fused_moe:
            ratios = [row["vllm"]["median_us"] / min(row[way]["median_us"] for way in args.mechanisms)
                      for row in rows if "vllm" in row]
            print(f"layer over vLLM: {mean_and_least(ratios)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
