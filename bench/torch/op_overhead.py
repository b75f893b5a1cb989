#!/usr/bin/env python3
"""Host time of an op beyond an empty op of the same schema and the C call, and the parts of it, in microseconds.

    torchrun --nproc-per-node 2 bench/torch/op_overhead.py     # GPUs
    python bench/torch/op_overhead.py --host                   # no GPU: a context of one host rank, CPU tensors

Each figure is the least of several loops, so that other processes of the machine are not in it. "op" is a call like an
earlier one, which libshingle_torch.so serves; "op in Python" and its parts are calls that Python serves. The target is
at most 5 us over both. With --host, the op is measured without its C call, whose threads would compete for the cores,
and without CUDA's selection of device and stream.
"""

import argparse
import ctypes
import os
import time

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.context import World
from shingle.torch import configure, contexts, outputs, overlapped
from shingle.torch.choices import PREDICTED
from shingle.torch.groups import find_group
from shingle.torch.warming import forced

ROWS, N, K, CALLS, LOOPS, TARGET_US = 16, 64, 64, 50, 60, 5
IN_PYTHON = "op in Python"


def least_us(calls, wait):
    """Least host time of each call. Loops take turns, so that all see the same load. wait: drains the device."""
    least = dict.fromkeys(calls, float("inf"))
    for name, call in [*calls.items()] * LOOPS:
        configure(native=name != IN_PYTHON)
        results = [call()]  # host ranks write results later, so they must stay
        begin = time.perf_counter()
        for _ in range(CALLS):
            results.append(call())
        least[name] = min(least[name], (time.perf_counter() - begin) / CALLS * 1e6)
        wait()
    return least


def empty_op():
    """An op of the schema of gemm_all_reduce that only allocates its result."""
    library = torch.library.Library("shingle_bench", "DEF")
    library.define("empty(Tensor x, Tensor w, str group, Tensor? bias=None) -> Tensor")
    for key in ("CPU", "CUDA"):
        library.impl("empty", lambda x, w, group, bias=None: x.new_empty(x.shape[0], w.shape[0]), key)
    return library, torch.ops.shingle_bench.empty.default


def use_host_rank():
    """Contexts of one host rank in place of CUDA's, and an op that runs overlapped on CPU."""
    contexts.make_world = lambda group, device: World(backend="host", ranks=1)
    torch.cuda.current_device = lambda: None
    torch.cuda.is_current_stream_capturing = lambda: False
    overlapped.current_stream = lambda index: 0
    library = torch.library.Library("shingle", "IMPL")
    library.impl("gemm_all_reduce", overlapped.gemm_all_reduce, "CPU", allow_override=True)
    return library


def join(host):
    if host:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29621", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("gloo")
        return torch.device("cpu"), lambda: [made.context.synchronize() for made in contexts._contexts.values()]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device, torch.cuda.synchronize


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", action="store_true", help="measure without a GPU")
    args = parser.parse_args()
    device, wait = join(args.host)
    libraries = [empty_op()] + ([use_host_rank()] if args.host else [])
    x, w = torch.randn(ROWS, K, device=device), torch.randn(N, K, device=device)
    group = dist.group.WORLD.group_name
    empty, op = libraries[0][1], torch.ops.shingle.gemm_all_reduce.default
    with torch.inference_mode(), forced(PREDICTED):
        out = op(x, w, group)  # host ranks write it later, so it must stay
        wait()
        made = next(iter(contexts._contexts.values()))
        ((shape, call),) = made.calls.items()
        out = outputs.gemm_all_reduce(x, w, group)
        matrices = [overlapped.rows_argument(t)[0] for t in (x, w, out)]
        streams = (overlapped.current_stream(device.index),)
        call(ROWS, matrices, streams)  # the C call repeats it, on tensors that stay
        wait()
        handle = made.context.handle
        figures = least_us({"C call": lambda: call.function(handle, call.number, ROWS, call._reference)}, wait)
        if args.host:
            call.function = ctypes.CDLL("libm.so.6").fegetround  # returns 0
        figures |= least_us({
            "empty op": lambda: empty(x, w, group),
            "op": lambda: op(x, w, group),
            IN_PYTHON: lambda: op(x, w, group),
            "of it: checks and result": lambda: outputs.gemm_all_reduce(x, w, group),
            "of it: prepared call": lambda: call(ROWS, matrices, streams),
            "of it: group": lambda: find_group(group),
            "of it: shape": lambda: overlapped.gemm("gemm+allreduce", x, w, made.group, bias=False),
            "of it: operands": lambda: overlapped.operands(shape, x, w, None),
            "of it: choice": lambda: overlapped.chosen(made.group, shape, ROWS, device),
            "of it: lookup": lambda: contexts.find_call(made.group, shape, ROWS, device.index),
        }, wait)  # fmt: skip
    if dist.get_rank() == 0:
        for name, value in figures.items():
            print(f"{name:26} {value:7.2f} us")
        over = figures["op"] - figures["empty op"] - (0 if args.host else figures["C call"])
        print(f"{'op over both':26} {over:7.2f} us (target {TARGET_US})")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
