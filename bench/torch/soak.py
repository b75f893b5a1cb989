#!/usr/bin/env python3
"""Many calls of random sizes through a compiled tensor-parallel MLP, and through CUDA graphs: results and memory.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/soak.py --calls 10000

Each call has another number of rows, drawn alike on all ranks; a third of the calls replay a graph of one of eight
sizes. Every 50th result is compared with mm and c10d. Prints the number of wrong results, and how device memory grew
after the first tenth of the calls. Exits 1 if a result is wrong or memory grew by more than 64 MiB. `--cpu` tries the
program without GPUs, and without graphs.
"""
import argparse
import random
import sys

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.warming import forced

from record import join, used_bytes

BOUND, MOST_BYTES, EVERY, GRAPHS = 2e-2, 64 << 20, 50, 8


def make_step(hidden, inner, device, dtype):
    """A compiled MLP of this rank's rows: all-gather, GEMM, activation, GEMM, reduce-scatter."""
    torch.manual_seed(dist.get_rank())
    up = (torch.randn(inner, hidden, device=device) * hidden**-0.5).to(dtype)
    down = (torch.randn(hidden, inner, device=device) * inner**-0.5).to(dtype)

    def step(x):
        (wide,) = st.all_gather_gemm(x, [up])
        return st.gemm_reduce_scatter(torch.nn.functional.silu(wide), down)

    return step, torch.compile(step, fullgraph=True, dynamic=True)


def captured(step, x):
    """A graph of the step on x."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graph.out = step(x)
    graph.x = x
    return graph


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--max-m", type=int, default=4096, help="rows of all ranks")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=2048, help="of a rank")
    parser.add_argument("--cpu", action="store_true", help="on CPU with gloo")
    args = parser.parse_args()
    if args.cpu:
        dist.init_process_group("gloo")
        device, dtype = torch.device("cpu"), torch.float32
    else:
        join()
        device, dtype = torch.device("cuda", torch.cuda.current_device()), torch.bfloat16
    ranks, draw = dist.get_world_size(), random.Random(5)
    st.configure(max_m=args.max_m, min_m=1)
    step, compiled = make_step(args.hidden, args.inner, device, dtype)

    def rows():
        return draw.randint(1, args.max_m // ranks)

    def new(own):
        return torch.randn(own, args.hidden, device=device).to(dtype)

    wrong, before = 0, None
    with torch.inference_mode(), forced(PREDICTED):
        st.warmup(lambda: step(new(args.max_m // ranks)), tune=False)
        graphs = [] if args.cpu else [captured(step, new(rows())) for _ in range(GRAPHS)]
        for number in range(args.calls):
            if graphs and draw.random() < 1 / 3:
                graph = draw.choice(graphs)
                graph.x.copy_(x := new(graph.x.shape[0]))
                graph.replay()
                out = graph.out
            else:
                out = compiled(x := new(rows()))
            if number % EVERY == 0:
                with forced(LIBRARY):
                    expected = step(x)
                error = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
                wrong += not error <= BOUND
            if number == args.calls // 10:
                before = used_bytes(device)
    grown = [after - at for after, at in zip(used_bytes(device), before)]
    if dist.get_rank() == 0:
        print(f"{args.calls} calls, {wrong} of {-(-args.calls // EVERY)} results wrong; device memory "
              f"{grown[0] / 2**20:+.1f} MiB, PyTorch's {grown[1] / 2**20:+.1f} MiB; {st.counters()}", flush=True)
    for graph in graphs:
        graph.reset()
    torch._dynamo.reset()
    st.release()
    dist.destroy_process_group()
    return int(wrong > 0 or max(grown) > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
