#!/usr/bin/env python3
"""Training steps with FSDP2 and with DDP, whose collectives are Shingle's: one line for each.

    torchrun --nproc-per-node 2 examples/python/10_fsdp2.py

The losses are compared with those of PyTorch's own collectives. Buckets are small here: min_bucket_bytes makes copy
engines move them too. Without GPUs c10d moves them, and sums are in the order of ranks.
"""

import torch
import torch.distributed as dist
from ranks import join, say
from shingle import torch as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

HIDDEN, BLOCKS, TOKENS, STEPS, MICRO = 64, 3, 16, 4, 2


def make_block():
    return nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))


def make_model(device):
    torch.manual_seed(0)
    return nn.Sequential(*(make_block() for _ in range(BLOCKS))).to(device)


def with_fsdp2(device, ours):
    """Sharded parameters in fp32; products in bf16; gradients in bf16, whose sums are fp32."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = make_model(device)
    for block in model:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return st.fsdp(model) if ours else model


def with_ddp(device, ours):
    model = DistributedDataParallel(make_model(device), gradient_as_bucket_view=True)
    return st.ddp(model) if ours else model


def losses(model, device):
    """Each rank has data of its own, and two micro-batches a step. FSDP2 reduces gradients after the last one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator, found = torch.Generator(device).manual_seed(dist.get_rank()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for micro in range(MICRO):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(micro == MICRO - 1)
            x = torch.randn(TOKENS, HIDDEN, generator=generator, device=device)
            loss = (model(x).float() - x).square().mean()
            loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main():
    device = join()
    st.configure(min_bucket_bytes=0)
    for name, make in (("FSDP2", with_fsdp2), ("DDP", with_ddp)):
        got, again, expected = (losses(make(device, ours), device) for ours in (True, True, False))
        assert got == again, "two runs differ"
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
        say(f"{name}: losses {', '.join(f'{loss:.5f}' for loss in got)}; equal to those of PyTorch's collectives")
    say(st.counters())
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
