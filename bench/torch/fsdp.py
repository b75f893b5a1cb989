#!/usr/bin/env python3
"""Data parallelism: FSDP2's communication by NCCL and by Shingle's copy engines, in turns.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/fsdp.py loop --tokens 2048 4096 8192 --json loop.json
    torchrun --standalone --nproc-per-node 2 bench/torch/fsdp.py beside
    torchrun --standalone --nproc-per-node 2 bench/torch/fsdp.py step --tokens 2048 4096 --compile
    torchrun --standalone --nproc-per-node 2 bench/torch/fsdp.py soak --steps 10000

loop: GEMMs of layers of Llama-3 8B; each layer's weights are gathered beside the layer before, its gradients scattered
beside the next. With NCCL's default, with engines, and without communication. `--idle-ms` rests before each iteration;
0 is sustained.
beside: a product at full rate beside an all-gather, by engines and by NCCL: by how much it slows.
step: training steps of a Llama-3 8B of Transformers (as many layers as --layers) sharded by fully_shard, in bf16 with
fp32 sums. Losses and device memory of both ways, and of a second run of Shingle; then times in turns. --compile
compiles each layer.
--interrupt-after N breaks warmup off after N measurements.
soak: buckets of random sizes through gather, scatter and reduce; every 50th is checked. Exits 1 if one is wrong or if
memory grew by more than 64 MiB.

--tune measures which mechanism moves which bucket first. --cpu --small tries any of them on CPU with gloo.
"""
import argparse
import contextlib
import gc
import itertools
import os
import random
import sys

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch.choices import LIBRARY
from shingle.torch.data_parallel import buckets, tuning
from shingle.torch.timing import forced
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from record import join, sampled, used_bytes, write_record

WAYS = {"nccl": LIBRARY, "shingle": None}
EVERY, MOST_BYTES = 50, 64 << 20  # of soak: buckets from one check to the next, and growth of memory


class Sizes:
    """Of a layer of Llama-3 8B, or of a small one."""

    def __init__(self, small):
        self.hidden, self.inner, self.qkv = (64, 96, 80) if small else (4096, 14336, 6144)
        self.gemms = [(self.hidden, self.qkv), (self.hidden, self.hidden), (self.hidden, 2 * self.inner),
                      (self.inner, self.hidden)]  # fmt: skip
        self.elements = sum(k * n for k, n in self.gemms)

    def views(self, flat):
        return [part.view(shape) for part, shape in zip(flat.split([k * n for k, n in self.gemms]), self.gemms)]


class Loop:
    """Forward and backward of some layers whose weights and gradients are sharded, as FSDP runs them."""

    def __init__(self, layers, tokens, device, small):
        self.layers, self.sizes, self.device = layers, Sizes(small), device
        self.world, self.group = dist.get_world_size(), dist.group.WORLD
        new = {"device": device, "dtype": torch.bfloat16}
        shard = self.sizes.elements // self.world
        self.shards = [torch.randn(shard, **new) * 0.02 for _ in range(layers)]
        self.reduced = [torch.empty(shard, **new) for _ in range(layers)]
        self.grads = [torch.zeros(self.sizes.elements, **new) for _ in range(2)]
        self.weight_grads = [self.sizes.views(grads) for grads in self.grads]
        gemms = self.sizes.gemms
        self.x, self.y = ([torch.randn(tokens, shape[side], **new) for shape in gemms] for side in (0, 1))
        self.out, self.x_grad = ([torch.empty(tokens, shape[side], **new) for shape in gemms] for side in (1, 0))
        buckets.reserve(self.group, device, [2 * self.sizes.elements] * 2)
        # Of each way: registered memory, if engines gather into it.
        self.full = {way: [buckets.empty_gathered(self.sizes.elements, torch.bfloat16, device, self.group)
                           for _ in range(2)] for way in self.ways()}  # fmt: skip

    @staticmethod
    def ways():
        for way, choice in WAYS.items():
            with forced(choice):
                yield way

    def forward(self, layer, weights):
        for x, weight, out in zip(self.x, weights, self.out):
            torch.mm(x, weight, out=out)

    def backward(self, layer, weights):
        for i, weight in reversed(list(enumerate(weights))):
            torch.mm(self.y[i], weight.t(), out=self.x_grad[i])
            torch.mm(self.x[i].t(), self.y[i], out=self.weight_grads[layer % 2][i])

    def iterate(self, way):
        """way: one of WAYS; None leaves out the communication."""
        full = self.full[way or "nccl"]
        with forced(WAYS.get(way)):
            for order, work in ((range(self.layers), self.forward), (range(self.layers)[::-1], self.backward)):
                gathered, scattered = self.gather(order[0], full, way), {}
                for layer in order:
                    wait(gathered)
                    gathered = self.gather(layer + order.step, full, way)
                    wait(scattered.pop(layer - 2 * order.step, None))  # whose buffer this layer's gradients take
                    work(layer, self.sizes.views(full[layer % 2]))
                    if work == self.backward and way:
                        scattered[layer] = buckets.scatter(
                            self.reduced[layer], self.grads[layer % 2], self.group, dist.ReduceOp.AVG, async_op=True
                        )
                for handle in scattered.values():
                    wait(handle)

    def gather(self, layer, full, way):
        if way and 0 <= layer < self.layers:
            return buckets.gather(full[layer % 2], self.shards[layer], self.group, async_op=True)
        return None


def wait(handle):
    if handle is not None:
        handle.wait()


def faster(times, name, than="nccl"):
    return round(times[than]["median_us"] / times[name]["median_us"], 4)


def loop(args, device):
    rows = []
    for tokens in args.tokens:
        made = Loop(args.layers, tokens, device, args.small)
        if args.tune:
            st.warmup(lambda: made.iterate("shingle"), confirm=args.confirm)
        times = sampled({way or "none": lambda way=way: made.iterate(way) for way in (*WAYS, None)}, args)
        rows.append({"mode": "loop", "tokens": tokens, "layers": args.layers, "idle_ms": args.idle_ms, "times": times,
                     "over_nccl": faster(times, "shingle"), "limit": faster(times, "none")})  # fmt: skip
        say(rows[-1])
        del made
    return rows


def beside(args, device):
    """A product of 4096×8192×3584 on each rank beside an all-gather of 512 MiB."""
    m, n, k, elements = (64, 64, 64, 4096) if args.small else (4096, 8192, 3584, 1 << 28)
    a, b = (torch.randn(*shape, device=device).bfloat16() for shape in ((m, k), (k, n)))
    group, world, rank = dist.group.WORLD, dist.get_world_size(), dist.get_rank()
    buckets.reserve(group, device, [2 * elements])
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)

    def product():
        for _ in range(4):
            torch.mm(a, b, out=out)

    def gathering(way):
        with forced(WAYS[way]):
            full = buckets.empty_gathered(elements, torch.bfloat16, device, group)
        own = full[rank * elements // world : (rank + 1) * elements // world].normal_()

        def gather():
            with forced(WAYS[way]):
                return buckets.gather(full, own, group, async_op=True)

        def both():
            work = gather()
            product()
            work.wait()

        return {f"{way} alone": lambda: gather().wait(), f"{way} beside": both}

    times = sampled({"product": product} | gathering("nccl") | gathering("shingle"), args)
    moved = elements * 2 * (world - 1) / world
    row = {"mode": "beside", "times": times}
    for way in WAYS:
        row[f"{way}_gbps"] = round(moved / times[f"{way} alone"]["median_us"] / 1e3, 1)
        row[f"{way}_slowdown"] = round(times[f"{way} beside"]["median_us"] / times["product"]["median_us"] - 1, 4)
    say(row)
    return [row]


def make_model(args, mesh, device):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
             "num_key_value_heads": 2}  # fmt: skip
    llama_3_8b = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                  "num_key_value_heads": 8, "rope_theta": 500000.0}  # fmt: skip
    config = LlamaConfig(num_hidden_layers=args.layers, use_cache=False, **(small if args.small else llama_3_8b))
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    with torch.device(device):
        model = LlamaForCausalLM(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if args.compile:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


class Training:
    """A model, its optimizer and its data, which differ by rank."""

    def __init__(self, args, mesh, device, tokens, ours):
        self.model = make_model(args, mesh, device)
        if ours:
            st.fsdp(self.model)
        fused = {} if args.cpu else {"fused": True}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **fused)
        self.generator = torch.Generator(device).manual_seed(dist.get_rank())
        self.shape, self.device = (1, tokens), device
        self.data = self.draw()

    def draw(self):
        vocabulary = self.model.config.vocab_size
        return torch.randint(vocabulary, self.shape, generator=self.generator, device=self.device)

    def backward(self):
        loss = self.model(input_ids=self.data, labels=self.data).loss
        loss.backward()
        return loss

    def step(self):
        self.optimizer.zero_grad()
        loss = self.backward()
        self.optimizer.step()
        return loss

    def losses(self, steps):
        found = []
        for _ in range(steps):
            self.data = self.draw()
            total = self.step().detach().clone()
            dist.all_reduce(total)
            found.append(total.item() / dist.get_world_size())
        return found


def step(args, device):
    mesh, rows = init_device_mesh(device.type, (dist.get_world_size(),)), []
    for tokens in args.tokens:
        losses, held = {}, {}
        for name in ("fsdp2", "shingle", "again"):
            training = None  # the model before returns its memory
            forget_models()
            training = Training(args, mesh, device, tokens, ours=name != "fsdp2")
            with deterministic():
                losses[name] = training.losses(args.steps)
            held[name] = used_bytes(device)[0]
        times = timed_steps(args, training)
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses["shingle"], losses["fsdp2"]))
        rows.append({"mode": "step", "tokens": tokens, "layers": args.layers, "compiled": args.compile,
                     "idle_ms": args.idle_ms, "times": times, "over_fsdp2": faster(times, "shingle"),
                     "last_loss": losses["shingle"][-1], "largest_difference": apart,
                     "repeats_bitwise": losses["shingle"] == losses["again"],
                     "fsdp2_bytes": held["fsdp2"], "more_bytes": held["shingle"] - held["fsdp2"],
                     "interrupted_after": args.interrupt_after})  # fmt: skip
        say(rows[-1] | {"counters": {name: n for name, n in st.counters().items() if "." in name}})
    return rows


def timed_steps(args, training):
    if args.tune:
        with interrupted(args.interrupt_after):
            st.warmup(training.backward, confirm=args.confirm)

    def timed(way):
        with forced(WAYS[way]):
            training.step()

    return sampled({way: lambda way=way: timed(way) for way in WAYS}, args)


@contextlib.contextmanager
def deterministic():
    """Products and attention of PyTorch repeat their bits, so that a difference between runs comes from collectives."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def forget_models():
    """Returns the memory of models that are no longer used: what a device holds then is that of the next one."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def interrupted(after):
    """Breaks warmup off after so many measurements, as a user or a scheduler may; 0: not at all."""
    count, measure = itertools.count(1), tuning.makespan_us

    def counted(*given):
        if next(count) > after:
            raise KeyboardInterrupt
        return measure(*given)

    if not after:
        yield
        return
    tuning.makespan_us = counted
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        tuning.makespan_us = measure


def soak(args, device):
    world, rank, group, draw = dist.get_world_size(), dist.get_rank(), dist.group.WORLD, random.Random(7)
    largest = (1 << 12) if args.small else (1 << 24)  # elements of a shard
    buckets.reserve(group, device, [4 * world * largest])
    wrong, checked, before = 0, 0, None
    for number in range(args.steps):
        shard = draw.randint(1, largest) if draw.random() < 0.2 else 8 * draw.randint(1, largest // 8)
        dtype, wide = draw.choice([torch.bfloat16, torch.float32]), draw.random() < 0.5
        mine = slice(rank * shard, (rank + 1) * shard)
        parts = torch.randn(world * shard, device=device).to(dtype)
        full = buckets.empty_gathered(world * shard, dtype, device, group)
        full[mine].copy_(parts[mine])
        buckets.gather(full, full[mine], group)
        out = torch.empty(shard, dtype=torch.float32 if wide else dtype, device=device)
        buckets.scatter(out, parts, group, dist.ReduceOp.AVG)
        sums = buckets.reduce(parts.clone(), group, 1 / world).wait()
        if number % EVERY == 0:
            expected = parts.to(torch.float32, copy=True)
            dist.all_reduce(expected)
            expected /= world
            whole = torch.empty_like(full)
            dist.all_gather_into_tensor(whole, parts[mine].clone())
            checked += 1
            wrong += not (torch.equal(full, whole) and near(out, expected[mine]) and near(sums, expected))
        if number == args.steps // 10:
            before = held_bytes(device)
    grown = [after - at for after, at in zip(held_bytes(device), before)]
    row = {"mode": "soak", "steps": args.steps, "wrong": wrong, "checked": checked, "grown_bytes": max(grown),
           "counters": st.counters()}  # fmt: skip
    say(row)
    return [row]


def held_bytes(device):
    """used_bytes() without what PyTorch keeps to allocate from."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return used_bytes(device)


def near(got, expected):
    bound = 1e-2 if got.dtype == torch.bfloat16 else 1e-5
    return ((got.float() - expected).norm() <= bound * expected.norm()).item()


def say(row):
    if dist.get_rank() == 0:
        print(row, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("loop", "beside", "step", "soak"))
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096], help="of a rank")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="of losses, or of the soak")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--idle-ms", type=float, default=40)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--confirm", type=int, default=5, help="steps that confirm what --tune finds")
    parser.add_argument("--interrupt-after", type=int, default=0, metavar="N")
    parser.add_argument("--cpu", action="store_true", help="on CPU with gloo")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    if args.mode == "step":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic() needs it
    if args.cpu:
        dist.init_process_group("gloo")
        device = torch.device("cpu")
        st.configure(min_bucket_bytes=0)
    else:
        join()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if args.small:
        args.tokens, args.layers = [32], 2
    rows = {"loop": loop, "beside": beside, "step": step, "soak": soak}[args.mode](args, device)
    if dist.get_rank() == 0 and args.json:
        write_record(args.json, rows)
    failed = args.mode == "soak" and (rows[0]["wrong"] > 0 or rows[0]["grown_bytes"] > MOST_BYTES)
    st.release()
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
