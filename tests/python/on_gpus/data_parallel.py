"""Cases of data parallelism: buckets, FSDP2 and DDP by copy engines, against NCCL. Without a GPU they run by gloo."""

import gc
import random

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.counters import counts
from shingle.torch.data_parallel import buckets
from shingle.torch.timing import forced
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

ELEMENTS = (8, 1000, 1 << 12, 3 << 15, 1 << 20)  # of a shard
BLOCKS = 4
MOVED = [f"overlapped.{op}" for op in ("allgather", "reducescatter", "allreduce")]


def begin():
    """Buckets of any size go by engines, and contexts of earlier cases leave room. Returns the device."""
    torch._dynamo.reset()  # graphs of earlier cases hold calls of their contexts
    gc.collect()
    st.release()
    st.configure(min_bucket_bytes=0)
    for name in MOVED:
        counts.pop(name, None)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    buckets.watch(dist.group.WORLD, device, ["allgather"], "tests/python/gpu_ops.py")
    return device


def moved(device):
    """Number of buckets that engines moved since begin(). On GPUs they have to."""
    found = sum(counts[name] for name in MOVED)
    assert device.type == "cpu" or found > 0, "engines moved nothing"
    return found


def integers(generator, *shape, device, dtype):
    return torch.randint(-8, 9, shape, generator=generator).to(device, dtype)


def random_buckets():
    """Sums of integers are exact, so that engines and NCCL agree in every bit."""
    device, world, rank, group = begin(), dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    draw, generator = random.Random(3), torch.Generator().manual_seed(rank)
    buckets.reserve(group, device, [4 * world * (max(ELEMENTS) + 8)] * 2)
    for number in range(40):
        if device.type == "cuda" and number % 8 == 0:
            torch.cuda.empty_cache()  # tensors of later rounds lie where freed memory was
        shard, dtype = draw.choice(ELEMENTS) + draw.choice([0, 0, 8, 1]), draw.choice([torch.bfloat16, torch.float32])
        wide, op = draw.random() < 0.5, draw.choice([dist.ReduceOp.SUM, dist.ReduceOp.AVG])
        parts = integers(generator, world * shard, device=device, dtype=dtype)
        mine, found = slice(rank * shard, (rank + 1) * shard), []
        for choice in (LIBRARY, PREDICTED):
            with forced(choice):
                out = torch.full((shard,), torch.nan, device=device, dtype=torch.float32 if wide else dtype)
                work = buckets.scatter(out, parts, group, op, async_op=draw.random() < 0.5)
                if work is not None:
                    work.wait()
                whole = buckets.empty_gathered(world * shard, dtype, device, group).fill_(torch.nan)
                buckets.gather(whole, whole[mine].copy_(parts[mine]), group)
                sums = buckets.reduce(parts.clone(), group, 0.5).wait()
                found.append((out, whole.clone(), sums))
        for got, expected, what in zip(*reversed(found), ("scatter", "gather", "reduce")):
            assert torch.equal(got, expected), f"{what} of shards of {shard} {dtype}, wide {wide}, {op}"
    return moved(device)


def hidden(device):
    return 512 if device.type == "cuda" else 32


def make_model(device):
    def make_block(size, inner):
        return nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))

    torch.manual_seed(0)
    return nn.Sequential(*(make_block(hidden(device), 3 * hidden(device) + i) for i in range(BLOCKS))).to(device)


def losses_of(model, device, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator, found = torch.Generator().manual_seed(dist.get_rank()), []
    for step in range(steps):
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(step % 3 != 1)  # accumulates once in three
        x = torch.randn(256, hidden(device), generator=generator).to(device)
        loss = (model(x).float() - x).square().mean()
        loss.backward()
        if step % 3 != 1:
            optimizer.step()
            optimizer.zero_grad()
        found.append(loss.item())
    return found


def fsdp2():
    device = begin()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))

    def losses(ours, policy):
        model = make_model(device)
        for block in (*model, model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return losses_of(st.fsdp(model) if ours else model, device)

    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy(torch.bfloat16, torch.float32),
                   MixedPrecisionPolicy(torch.bfloat16)):  # fmt: skip
        ours, again, expected = (losses(mine, policy) for mine in (True, True, False))
        assert ours == again, "two runs differ"
        torch.testing.assert_close(ours, expected, rtol=2e-2, atol=1e-3)
    return moved(device)


def ddp():
    device = begin()

    def losses(hook):
        model = DistributedDataParallel(make_model(device), bucket_cap_mb=2)
        return losses_of(st.ddp(model) if hook else model, device)

    ours, again, expected = (losses(hook) for hook in (True, True, False))
    assert ours == again, "two runs differ"
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)
    return moved(device)


def beside_tensor_parallelism():
    """Calls of tensor and of data parallelism on one GPU, with ranks delayed at random: none waits for ever."""
    device, world, rank, group = begin(), dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    shard, draw, generator = 1 << 18, random.Random(rank), torch.Generator().manual_seed(rank)
    buckets.reserve(group, device, [4 * world * shard])
    st.configure(max_m=2048, min_m=1)
    x, w = (integers(generator, rows, 512, device=device, dtype=torch.bfloat16) for rows in (1024, 768))
    parts = integers(generator, world * shard, device=device, dtype=torch.float32)
    whole = buckets.empty_gathered(world * shard, torch.float32, device, group)
    own, out = whole[rank * shard : (rank + 1) * shard].copy_(parts[:shard]), parts.new_empty(shard)
    with forced(PREDICTED):
        expected = None
        for _ in range(50):
            if device.type == "cuda":
                torch.cuda._sleep(draw.randint(0, 400_000))
            works = [buckets.gather(whole, own, group, async_op=True),
                     buckets.scatter(out, parts, group, dist.ReduceOp.AVG, async_op=True)]  # fmt: skip
            summed = st.gemm_reduce_scatter(x, w)
            for work in works:
                work.wait()
            found = summed.clone(), whole.clone(), out.clone()
            expected = expected or found
            assert all(torch.equal(got, first) for got, first in zip(found, expected)), "a run differs from the first"
    return moved(device)
