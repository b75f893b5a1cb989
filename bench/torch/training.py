#!/usr/bin/env python3
"""Training steps as in torchtitan: parallelize_module, torch.compile and AdamW, with PyTorch's styles and Shingle's.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/training.py --json training.json

Blocks are Llama's MLP and a square linear pair in place of attention, with sequence parallelism. Each way trains the
same model on the same data; Shingle's twice, NCCL's again with hidden units in another order, which only changes the
order of sums. Prints the largest relative differences of the losses to NCCL's, whether both runs of Shingle are equal in
every bit, and the median time of a step on the slowest rank. `--cpu` tries the program without GPUs.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch import dtensor as shingle
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor import parallel as pytorch
from torch.nn import functional as F

from record import join, write_record

WARM = 5  # steps that compile and warm up


class Block(nn.Module):
    """Two pre-norm residual branches: a square pair of linear layers, and Llama's MLP."""

    def __init__(self, hidden, inner):
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.mix, self.out = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * inner, bias=False), nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        x = x + self.out(F.gelu(self.mix(self.norm(x))))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def make_model(styles, mesh, device, args):
    torch.manual_seed(1)
    dtype = torch.float32 if args.cpu else torch.bfloat16
    model = nn.Sequential(*(Block(args.hidden, args.inner) for _ in range(args.layers))).to(device, dtype)
    gathering, scattering = styles.ColwiseParallel, styles.RowwiseParallel
    for block in model:
        pytorch.parallelize_module(block, mesh, {
            "mix": gathering(input_layouts=Shard(0)), "out": scattering(output_layouts=Shard(0)),
            "gate_up": gathering(input_layouts=Shard(0)), "down": scattering(output_layouts=Shard(0)),
        })
    return model


@torch.no_grad()
def reorder(model):
    """Permutes the hidden units of each rank: the same function, with another order of sums."""
    for block in model:
        for first, second in ((block.mix, block.out), (block.gate_up, block.down)):
            into, out_of = first.weight.to_local(), second.weight.to_local()
            units = out_of.shape[1]
            order = torch.randperm(units).to(out_of.device)
            into.copy_(into.view(-1, units, into.shape[1])[:, order].reshape(into.shape))
            out_of.copy_(out_of[:, order])


def train(styles, mesh, device, args, reordered=False):
    """Losses of all steps, and the times of those that are warm, in milliseconds, on the slowest rank."""
    model = make_model(styles, mesh, device, args)
    if reordered:
        reorder(model)
    norms = [norm.weight for block in model for norm in (block.norm, block.mlp_norm)]
    optimizer, step = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False), torch.compile(model)
    rank, rows = dist.get_rank(), args.rows // mesh.size()
    generator = torch.Generator(device).manual_seed(2)
    losses, times = [], []
    for number in range(args.steps):
        x = torch.randn(args.rows, args.hidden, generator=generator, device=device).to(norms[0].dtype)
        own, target = x[rank * rows:(rank + 1) * rows], x.roll(1, -1)[rank * rows:(rank + 1) * rows]
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = (step(own) - target).float().square().sum() / x.numel()
        loss.backward()
        for weight in norms:  # replicated, but each rank sees its rows only
            dist.all_reduce(weight.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())  # waits for the device
        slowest = torch.tensor([time.perf_counter() - begin], device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if number >= WARM:
            times.append(slowest.item() * 1e3)
    torch._dynamo.reset()
    return losses, times


def largest_difference(losses, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192, help="of all ranks")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336, help="of all ranks")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-5, help="with 1e-4, runs of NCCL with another order of sums differ by more than 100%%")
    parser.add_argument("--cpu", action="store_true", help="on CPU with gloo")
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    if args.cpu:
        dist.init_process_group("gloo")
        device = torch.device("cpu")
    else:
        join()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    st.configure(max_m=args.rows)
    expected, nccl_ms = train(pytorch, mesh, device, args)
    other_order, _ = train(pytorch, mesh, device, args, reordered=True)
    (losses, ours_ms), (again, _) = train(shingle, mesh, device, args), train(shingle, mesh, device, args)
    row = {"rows": args.rows, "hidden": args.hidden, "inner": args.inner, "layers": args.layers, "steps": args.steps,
           "world": mesh.size(), "first_loss": losses[0], "last_loss": losses[-1], "last_loss_nccl": expected[-1],
           "largest_difference": largest_difference(losses, expected),
           "of_another_order": largest_difference(other_order, expected),
           "repeats_bitwise": losses == again,
           "nccl_ms": statistics.median(nccl_ms), "shingle_ms": statistics.median(ours_ms)}
    if dist.get_rank() == 0:
        print(row, {name: count for name, count in st.counters().items() if "." in name}, flush=True)
        if args.json:
            write_record(args.json, [row])
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
