#!/usr/bin/env python3
"""Training loops whose collectives run beside GEMMs, with and without tables of Shingle's NCCL tuner plugin, in one run.

    export NCCL_TUNER_PLUGIN=/path/to/libnccl-tuner-shingle.so NCCL_NVLS_ENABLE=0
    torchrun --standalone --nproc-per-node 8 bench/torch/loops.py fsdp --autoccl autoccl.json --online learnt.json
    torchrun --standalone --nproc-per-node 8 bench/torch/loops.py tp --table ours=table.json
    torchrun --standalone --nproc-per-node 8 bench/torch/loops.py tp+ddp --online learnt.json

Layers are those of Llama-3 8B in bf16, GEMMs only. fsdp: each layer's weights are gathered while the layer before is
computed, its gradients are scattered while the next is. tp: two half-batches (Domino): one's sums are all-reduced while
the other is computed. tp+ddp: the same, while a second communicator sums each layer's gradients over the replicas.

The plugin reads its environment when a communicator is made, so every configuration has communicators of its own:
NCCL's default; --autoccl FILE: each collective as fast as it can be alone, searched here and written to FILE;
--online FILE: tuned here, while the loop runs; --table NAME=FILE: any other. Their iterations take turns. Prints a line
of JSON a configuration; times are in microseconds, of the slowest rank. What the plugin cannot set (shingle tune
--nccl-env) holds for the process, so for all configurations. --product-sms N: cuBLAS plans the GEMMs for N SMs, so that
collectives find the others free.

--profile-trace FILE records two iterations of rank 0 with NCCL's default instead, for shingle cotune --trace FILE:

    torchrun --standalone --nproc-per-node 2 bench/torch/loops.py fsdp --profile-trace trace.json
"""
import argparse
import ctypes
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

from record import nccl_version, write_record

HIDDEN, FFN, QKV = 4096, 14336, 6144
BF16 = {"device": "cuda", "dtype": torch.bfloat16}


class Stopwatch:
    """Events around an iteration, and around its computations: what lies between these is waiting."""

    def __init__(self):
        self.marks = []

    def mark(self):
        self.marks.append(torch.cuda.Event(enable_timing=True))
        self.marks[-1].record()

    def read(self):
        """(iteration, computation) in us; marks are: begin, then pairs around computations, end."""
        torch.cuda.synchronize()
        inner = self.marks[1:-1]
        compute = sum(a.elapsed_time(b) for a, b in zip(inner[::2], inner[1::2]))
        return self.marks[0].elapsed_time(self.marks[-1]) * 1e3, compute * 1e3


class Fsdp:
    """Forward and backward of `layers` layers, each of whose weights and gradients are sharded over all ranks."""

    communicators = 1

    def __init__(self, layers, tokens, world):
        self.layers = layers
        shapes = [(HIDDEN, QKV), (HIDDEN, HIDDEN), (HIDDEN, 2 * FFN), (FFN, HIDDEN)]
        sizes = [k * n for k, n in shapes]
        self.shards = [torch.randn(sum(sizes) // world, **BF16) * 0.02 for _ in range(layers)]
        self.grad_shards = [torch.empty_like(self.shards[0]) for _ in range(layers)]
        self.full, self.grads = ([torch.zeros(sum(sizes), **BF16) for _ in range(2)] for _ in range(2))
        views = lambda flat: [part.view(shape) for part, shape in zip(flat.split(sizes), shapes)]
        self.weights, self.weight_grads = [views(f) for f in self.full], [views(g) for g in self.grads]
        self.x = [torch.randn(tokens, k, **BF16) for k, _ in shapes]
        self.y = [torch.randn(tokens, n, **BF16) for _, n in shapes]
        self.out = [torch.empty(tokens, n, **BF16) for _, n in shapes]
        self.x_grad = [torch.empty(tokens, k, **BF16) for k, _ in shapes]

    def forward(self, layer):
        for x, weight, out in zip(self.x, self.weights[layer % 2], self.out):
            torch.mm(x, weight, out=out)

    def backward(self, layer):
        for i, weight in reversed(list(enumerate(self.weights[layer % 2]))):
            torch.mm(self.y[i], weight.t(), out=self.x_grad[i])
            torch.mm(self.x[i].t(), self.y[i], out=self.weight_grads[layer % 2][i])

    def gather(self, layer, group):
        if group is not None and 0 <= layer < self.layers:
            return dist.all_gather_into_tensor(self.full[layer % 2], self.shards[layer], group, async_op=True)

    def scatter(self, layer, group):
        if group is not None:
            return dist.reduce_scatter_tensor(self.grad_shards[layer], self.grads[layer % 2], group=group, async_op=True)

    def iterate(self, groups, watch, compute=True):
        """`groups`: the communicators' groups; none of them leaves out the communication."""
        (group,) = groups or [None]
        for order, work in ((range(self.layers), self.forward), (range(self.layers - 1, -1, -1), self.backward)):
            step, backward = order.step, work == self.backward
            gathered, scattered = self.gather(order[0], group), {}
            for layer in order:
                wait(gathered)
                gathered = self.gather(layer + step, group)
                wait(scattered.pop(layer - 2 * step, None))  # whose buffer this layer's gradients take
                if compute:
                    watch.mark()
                    work(layer)
                    watch.mark()
                if backward:
                    scattered[layer] = self.scatter(layer, group)
            for handle in scattered.values():
                wait(handle)


class Tp:
    """Forward of `layers` layers whose weights are split over the ranks; two half-batches take turns."""

    communicators = 1

    def __init__(self, layers, tokens, world):
        self.layers = layers
        shapes = [[(HIDDEN, QKV // world), (HIDDEN // world, HIDDEN)], [(HIDDEN, 2 * FFN // world), (FFN // world, HIDDEN)]]
        half = tokens // 2
        self.weights = [[torch.randn(k, n, **BF16) * 0.02 for k, n in part] for part in shapes]
        self.x = [[torch.randn(half, k, **BF16) for k, _ in part] for part in shapes]
        self.out = [[torch.empty(half, n, **BF16) for _, n in part] for part in shapes]
        self.sums = [torch.zeros(half, HIDDEN, **BF16) for _ in range(2)]

    def begin(self, groups, part):
        """Begins what other communicators do beside a part of a layer. Returns c10d's Work, or None."""

    def iterate(self, groups, watch, compute=True):
        reduced, beside = [None, None], [None, None]
        for step in range(2 * self.layers):
            part = step % 2
            if groups:
                wait(beside[part])
                beside[part] = self.begin(groups, part)
            for half in range(2):
                wait(reduced[half])
                if compute:
                    watch.mark()
                    torch.mm(self.x[part][0], self.weights[part][0], out=self.out[part][0])
                    torch.mm(self.x[part][1], self.weights[part][1], out=self.out[part][1])
                    watch.mark()
                if groups:
                    reduced[half] = dist.all_reduce(self.sums[half], group=groups[0], async_op=True)
        for handle in reduced + beside:
            wait(handle)


class TpDdp(Tp):
    """Tp, while a second communicator sums the gradients of the layer before."""

    communicators = 2

    def __init__(self, layers, tokens, world):
        super().__init__(layers, tokens, world)
        self.grads = [torch.zeros(sum(weight.numel() for weight in part), **BF16) for part in self.weights]

    def begin(self, groups, part):
        return dist.all_reduce(self.grads[part], group=groups[1], async_op=True)


LOOPS = {"fsdp": Fsdp, "tp": Tp, "tp+ddp": TpDdp}


def limit_products(sms):
    """Makes cuBLAS plan this thread's products for so many SMs."""
    cublas = ctypes.CDLL(f"libcublas.so.{torch.version.cuda.partition('.')[0]}")
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    if status := cublas.cublasSetSmCountTarget(handle, ctypes.c_int(sms)):
        sys.exit(f"--product-sms {sms}: cuBLAS says {status}; use 1 to the number of SMs")


def wait(handle):
    if handle is not None:
        handle.wait()  # on the device


def time_iteration(loop, groups, compute=True):
    watch = Stopwatch()
    watch.mark()
    loop.iterate(groups, watch, compute)
    watch.mark()
    return watch.read()


def slowest(values):
    tensor = torch.tensor(values, device="cuda", dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def make_group(table="", learn="", **settings):
    """A communicator for which the plugin has this table, or which it tunes with these settings (variables)."""
    files = {"SHINGLE_TUNER_TABLE": table, "SHINGLE_TUNER_LEARN": learn}
    variables = {**settings, **{name: os.path.abspath(value) for name, value in files.items() if value}}
    os.environ.update(variables)
    group = dist.new_group(backend="nccl")
    ones = torch.ones(1 << 22, device="cuda")
    dist.all_reduce(ones, group=group)
    gathered = torch.empty(ones.numel() * dist.get_world_size(), device="cuda")
    dist.all_gather_into_tensor(gathered, ones, group=group)
    if any((sums != dist.get_world_size()).any() for sums in (ones, gathered)):
        sys.exit(f"wrong sums with {table or learn or 'the default'}")
    for name in variables:
        os.environ.pop(name, None)
    return group


def make_groups(loop, **options):
    """As make_group, for each communicator of a loop. What one learns has a file of its own, and may be its table."""
    def of_group(i):
        files = {name: learnt(options[name], i) for name in ("learn", "table") if name in options}
        return options | {name: path for name, path in files.items() if name == "learn" or os.path.exists(path)}

    return [make_group(**of_group(i)) for i in range(loop.communicators)]


def learnt(path, communicator):
    return f"{path}.{communicator}" if communicator else path


def collectives(loop, world):
    """Of a loop: (name, size class that tables go by, call on a group), one for each name and class."""
    def size_class(buffer):
        return (buffer.numel() * buffer.element_size()).bit_length() - 1

    if isinstance(loop, Tp):
        sizes = {size_class(buffer): buffer for buffer in [loop.sums[0], *getattr(loop, "grads", [])]}
        return [("allreduce", size, lambda group, of=of: dist.all_reduce(of, group=group))
                for size, of in sizes.items()]
    return [("allgather", size_class(loop.full[0]), lambda group: wait(loop.gather(0, group))),
            ("reducescatter", size_class(loop.full[0]), lambda group: wait(loop.scatter(0, group)))]


def write_table(path, entries):
    if dist.get_rank() == 0:
        with open(path + ".tmp", "w") as file:
            json.dump({"format": "shingle-nccl-tuning", "version": 1, "entries": entries}, file, indent=1)
        os.rename(path + ".tmp", path)
    dist.barrier()


def tune_alone(loop, path, world):
    """AutoCCL's objective: each collective alone, as fast as it can be."""
    best = {}
    candidates = [{"channels": c, "algorithm": "ring", "protocol": p} for p in ("simple", "ll128") for c in (4, 8, 16, 24, 32)]
    for config in [{}] + candidates:
        entries = [{"collective": name, "size_class": size, "ranks": world, **config}
                   for name, size, _ in collectives(loop, world)]
        write_table(path, entries)
        group = make_group(table=path)
        for entry, (name, _, call) in zip(entries, collectives(loop, world)):
            samples = []
            for _ in range(12):
                watch = Stopwatch()
                watch.mark()
                call(group)
                watch.mark()
                samples.append(watch.read()[0])
            us = slowest([statistics.median(samples[2:])])[0]
            kind = name, entry["size_class"]
            if kind not in best or us < best[kind][0]:
                best[kind] = (us, entry)
        dist.destroy_process_group(group)
    write_table(path, [entry for _, entry in best.values()])


def tune_online(loop, path, seconds, loss, cupti):
    """Runs the loop while the plugin tunes, until it writes what was confirmed. The communicator keeps that.

    Returns the groups, the iterations, and their mean time in us: what tuning cost.
    """
    paths = [learnt(path, i) for i in range(loop.communicators)]
    if dist.get_rank() == 0:
        for stale in filter(os.path.exists, paths):
            os.remove(stale)
    dist.barrier()
    settings = {"SHINGLE_TUNER_LOSS": str(loss), "SHINGLE_TUNER_TIME": f"{seconds}s"}
    if cupti:
        settings["SHINGLE_TUNER_CUPTI"] = cupti
    groups = make_groups(loop, learn=path, **settings)
    us, found = [], False
    late = time.monotonic() + 2 * loop.communicators * seconds + 10  # the last comparison follows the last trial
    while not found:
        us += [time_iteration(loop, groups)[0] for _ in range(20)]
        found = slowest([float(all(map(os.path.exists, paths)) or time.monotonic() > late)])[0] > 0
    return groups, len(us), slowest([statistics.mean(us)])[0]


def record(loop, groups, path):
    """A trace as torch.profiler exports it, with the sizes of products and with what streams await."""
    from torch.profiler import ProfilerActivity, profile, schedule

    def export(profiler):
        if dist.get_rank() == 0:
            profiler.export_chrome_trace(path)

    waits = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True, experimental_config=waits,
                 schedule=schedule(wait=1, warmup=2, active=2, repeat=1), on_trace_ready=export) as profiler:
        for _ in range(5):
            loop.iterate(groups, Stopwatch())
            torch.cuda.synchronize()
            profiler.step()


def spread(values):
    ordered = sorted(values)
    at = lambda part: round(ordered[int(part * (len(ordered) - 1))], 1)
    return {"median": round(statistics.median(ordered), 1), "p25": at(0.25), "p75": at(0.75)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8192, help="of a rank (fsdp), of all (tp, tp+ddp)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=5, help="of each configuration in a round")
    parser.add_argument("--autoccl", metavar="FILE")
    parser.add_argument("--online", metavar="FILE")
    parser.add_argument("--online-seconds", type=float, default=30, help="after which nothing more is tried")
    parser.add_argument("--online-loss", type=float, default=1.0, help="share of the time that trials may cost")
    parser.add_argument("--cupti", metavar="LIBRARY",
                        help="times computation and communication apart, such as libcupti.so.13")
    parser.add_argument("--product-sms", type=int, metavar="N", help="SMs that cuBLAS plans the GEMMs for (all)")
    parser.add_argument("--table", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--json", metavar="FILE", help="for the record")
    parser.add_argument("--profile-trace", metavar="FILE", help="record a trace instead of measuring")
    flags = parser.parse_args()
    if (flags.autoccl or flags.online or flags.table) and "NCCL_TUNER_PLUGIN" not in os.environ:
        parser.error("NCCL_TUNER_PLUGIN does not name libnccl-tuner-shingle.so")

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    torch.manual_seed(dist.get_rank())
    if flags.product_sms is not None:
        limit_products(flags.product_sms)
    loop = LOOPS[flags.loop](flags.layers, flags.tokens, world)
    groups, tuning = {"default": make_groups(loop)}, {}
    if flags.profile_trace:
        record(loop, groups["default"], flags.profile_trace)
        dist.destroy_process_group()
        return
    if flags.autoccl:
        tune_alone(loop, flags.autoccl, world)
        groups["autoccl"] = make_groups(loop, table=flags.autoccl)
    if flags.online:
        groups["online"], iterations, mean = tune_online(
            loop, flags.online, flags.online_seconds, flags.online_loss, flags.cupti)
        tuning["online"] = {"tuned_in_iterations": iterations, "tuning_iteration_us": round(mean, 1)}
    for name, _, path in (text.partition("=") for text in flags.table):
        groups[name] = make_groups(loop, table=path)

    samples = {name: [] for name in groups}
    alone = {"compute": [], **{name: [] for name in groups}}
    for round_ in range(flags.rounds + 1):
        for name, of_config in groups.items():
            taken = [time_iteration(loop, of_config) for _ in range(flags.iterations)]
            quiet = time_iteration(loop, of_config, compute=False)[0]
            computed = time_iteration(loop, None)[1]
            if round_ > 0:  # the first warms up
                samples[name] += taken
                alone[name].append(quiet)
                alone["compute"].append(computed)
    compute_alone = statistics.median(slowest(alone["compute"]))
    baseline, rows = None, []
    for name in groups:
        iteration = slowest([i for i, _ in samples[name]])
        compute = slowest([c for _, c in samples[name]])
        exposed = slowest([i - c for i, c in samples[name]])
        baseline = baseline or statistics.median(iteration)
        row = {"loop": flags.loop, "config": name, "world": world, "layers": flags.layers, "tokens": flags.tokens,
               "iteration_us": spread(iteration), "over_default": round(baseline / statistics.median(iteration), 4),
               "compute_us": spread(compute), "compute_alone_us": round(compute_alone, 1),
               "slowdown": round(statistics.median(compute) / compute_alone, 4), "exposed_us": spread(exposed),
               "communication_alone_us": spread(slowest(alone[name])),
               **tuning.get(name, {}), **({"product_sms": flags.product_sms} if flags.product_sms is not None else {}),
               "nccl": nccl_version(), "torch": torch.__version__}
        rows.append(row)
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    if dist.get_rank() == 0 and flags.json:
        write_record(flags.json, rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
