#!/usr/bin/env python3
"""A training step as in torchtitan: parallelize_module, torch.compile and AdamW, with Shingle's styles and PyTorch's.

    torchrun --nproc-per-node 2 examples/python/05_training_step_with_compile.py

Only the import of the styles differs between the two.
"""

import torch
import torch.distributed as dist
from ranks import join, say
from shingle import torch as st
from shingle.torch import dtensor as shingle
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor import parallel as pytorch
from torch.nn import functional as F

BATCH, SEQUENCE, HIDDEN, INNER, STEPS = 2, 16, 32, 64, 4


class Block(nn.Module):
    """A pre-norm MLP block with a residual."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INNER, bias=False), nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


def losses(styles, mesh, device):
    """Trains two blocks whose activations are sharded along the sequence (dimension 1)."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(device)
    for block in model:
        plan = {
            "up": styles.ColwiseParallel(input_layouts=Shard(1)),
            "down": styles.RowwiseParallel(output_layouts=Shard(1)),
        }
        pytorch.parallelize_module(block, mesh, plan)
    # The norm is replicated, but sees only this rank's tokens: its gradient is summed.
    norms = [block.norm.weight for block in model]
    optimizer, step = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False), torch.compile(model)
    x, target = torch.randn(2, BATCH, SEQUENCE, HIDDEN, device=device)
    own, found = slice(dist.get_rank() * SEQUENCE // mesh.size(), (dist.get_rank() + 1) * SEQUENCE // mesh.size()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (step(x[:, own]) - target[:, own]).square().sum() / target.numel()
        loss.backward()
        for weight in norms:
            dist.all_reduce(weight.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append(total.item())
    return found


def main():
    device = join()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    got, expected = losses(shingle, mesh, device), losses(pytorch, mesh, device)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    say(f"losses: {', '.join(f'{loss:.5f}' for loss in got)}; equal to those of PyTorch's styles")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
