#!/usr/bin/env python3
"""A tensor-parallel MLP with sequence parallelism, trained for a few steps; then checked against the unsharded one.

    torchrun --nproc-per-node 2 examples/python/03_tensor_parallel_mlp.py

Backward of the all-gather is an overlapped reduce-scatter, and the other way round.
"""

import torch
import torch.distributed as dist
from ranks import join, say
from shingle import torch as st
from shingle.torch.nn import ColumnParallelLinear, RowParallelLinear
from torch import nn

ROWS, HIDDEN, INNER, STEPS = 64, 32, 96, 5


def train(up, down, x, target, total):
    """Losses of all steps. total: sums a loss over the ranks."""
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (down(torch.nn.functional.gelu(up(x))) - target).square().sum() / (ROWS * HIDDEN)
        loss.backward()
        optimizer.step()
        losses.append(total(loss.detach().clone()).item())
    return losses


def sum_over_ranks(loss):
    dist.all_reduce(loss)
    return loss


def main():
    device = join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same whole layers and data on every rank
    up, down = nn.Linear(HIDDEN, INNER).to(device), nn.Linear(INNER, HIDDEN).to(device)
    x, target = torch.randn(2, ROWS, HIDDEN, device=device)

    losses = train(
        ColumnParallelLinear.from_linear(up, sequence_parallel=True),
        RowParallelLinear.from_linear(down, sequence_parallel=True),
        x.chunk(ranks)[rank], target.chunk(ranks)[rank], sum_over_ranks,
    )  # fmt: skip
    expected = train(up, down, x, target, lambda loss: loss)
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-4)
    say(f"losses of {STEPS} steps on {ranks} ranks: {', '.join(f'{loss:.5f}' for loss in losses)}; equal to unsharded")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
