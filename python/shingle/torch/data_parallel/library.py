"""Collectives of buckets by c10d: as FSDP2 and DDP call them, and with sums in the order of ranks.

The latter serve CPU tensors in place of copy engines, and round as these do.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather(out, own, group, async_op=False):
    return dist.all_gather_into_tensor(out, own, group=group.process_group, async_op=async_op)


def scatter(out, parts, op, group, async_op=False):
    """Reduces as FSDP2 does. Parts that are narrower than the result are widened first."""
    return dist.reduce_scatter_tensor(
        out, parts.to(out.dtype), op=op, group=group.process_group, async_op=async_op
    )


def reduced_future(x, scale, group):
    """A future of scale · Σ_ranks x, in place, scaled first as DDP does."""
    x.mul_(scale)
    return dist.all_reduce(x, group=group.process_group, async_op=True).get_future().then(lambda done: done.value()[0])


def summed(parts, scale, out):
    """Stores scale · Σ parts: in fp32 at least, in their order, rounded once."""
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total += part
    out.copy_(total.mul_(scale))


def exchange_scatter(out, parts, scale, group):
    """out: this rank's shard of scale · Σ_ranks parts."""
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=group.process_group)
    summed(arrived.view(group.size, -1), scale, out)


def exchange_reduce(x, scale, group):
    """x = scale · Σ_ranks x. The last shards may be short."""
    shard = -(-x.numel() // group.size)
    whole = F.pad(x, (0, shard * group.size - x.numel()))
    own = x.new_empty(shard)
    exchange_scatter(own, whole, scale, group)
    dist.all_gather_into_tensor(whole, own, group=group.process_group)
    x.copy_(whole[: x.numel()])
