"""FSDP2 and DDP by shingle.torch on CPU: against their own collectives, for gradients, losses and memory."""

import contextlib
import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from thread_ranks import engines, on_threads  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard,
)  # fmt: skip
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
POLICIES = {
    "fp32": MixedPrecisionPolicy(),
    "bf16": MixedPrecisionPolicy(param_dtype=BF16),
    "bf16, fp32 sums": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=F32),
    "fp16": MixedPrecisionPolicy(param_dtype=F16, reduce_dtype=F16),
    "fp16, fp32 sums": MixedPrecisionPolicy(param_dtype=F16, reduce_dtype=F32),
}


def st():
    from shingle import torch as shingle_torch

    return shingle_torch


@contextlib.contextmanager
def engines_serve():
    """Buckets of any size are those that engines would move: on CPU their sums are in the order of ranks."""
    st().configure(min_bucket_bytes=0)
    try:
        yield
    finally:
        st().configure(min_bucket_bytes=4 << 20)


class Block(nn.Module):
    """Uneven sizes: no dimension is a multiple of the ranks, and some parameters are smaller than the world."""

    def __init__(self, draw, size):
        super().__init__()
        self.inner = draw.randint(3, 19)
        self.up, self.down = nn.Linear(size, self.inner), nn.Linear(self.inner, size)
        self.scale = nn.Parameter(torch.ones(1))  # smaller than the world

    def forward(self, x):
        return x + self.scale * self.down(torch.tanh(self.up(x)))


def make_model(seed, blocks=3):
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)  # not PyTorch's, which threads share
    size = draw.randint(5, 13)
    model = nn.Sequential(nn.Linear(7, size), *(Block(draw, size) for _ in range(blocks)), nn.Linear(size, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def sharded(seed, mesh, ours, policy="fp32", compiled=False, **options):
    model = make_model(seed)
    for block in model:
        if compiled:
            block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh, mp_policy=POLICIES[policy], **options)
    fully_shard(model, mesh=mesh, mp_policy=POLICIES[policy], **options)
    return st().fsdp(model) if ours else model


def train(model, steps=3, micro=1, seed=0):
    """Losses, and gradients of the last step. Each rank has its own data; parameters follow the gradients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for i in range(micro):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(i == micro - 1)
            x = torch.randn(6, 7, generator=generator)
            with model.no_sync() if i < micro - 1 and hasattr(model, "no_sync") else contextlib.nullcontext():
                loss = model(x).float().square().mean()
                loss.backward()
            losses.append(loss.item())
        gradients = [local(p.grad) for p in model.parameters()]
        optimizer.step()
    return losses, gradients


def local(x):
    return (x.to_local() if hasattr(x, "to_local") else x).detach().clone()


def same(a, b):
    return a[0] == b[0] and all(torch.equal(x, y) for x, y in zip(a[1], b[1], strict=True))


def close(a, b, dtype=F32):
    # Sums in another order, of values of this dtype, over a few steps of training.
    bound = {F32: 1e-5, BF16: 4e-2, F16: 6e-3}[dtype]
    torch.testing.assert_close(a[0], b[0], rtol=bound, atol=bound)
    for x, y in zip(a[1], b[1], strict=True):
        torch.testing.assert_close(x, y, rtol=bound, atol=bound)


def mesh_of(*sizes, **options):
    return init_device_mesh("cpu", sizes or (dist.get_world_size(),), **options)


# -- FSDP2


def fsdp_case(policy, micro):
    mesh = mesh_of()
    own = train(sharded(1, mesh, ours=False, policy=policy), micro=micro)
    assert same(train(sharded(1, mesh, ours=True, policy=policy), micro=micro), own), "small buckets take c10d"
    with engines_serve():
        first, second = (train(sharded(1, mesh, ours=True, policy=policy), micro=micro) for _ in range(2))
    assert same(first, second), "two runs differ"
    dtype = POLICIES[policy].reduce_dtype or POLICIES[policy].param_dtype or F32
    close(first, own, dtype)
    if dist.get_world_size() == 2 and dtype == F32:
        assert same(first, own), "a sum of two fp32 numbers has one order"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("world", [2, 4])
def test_fsdp_as_its_own(world, policy):
    on_ranks(world, fsdp_case, policy, 1)


@pytest.mark.parametrize("policy", ["fp32", "bf16, fp32 sums"])
def test_fsdp_accumulates_gradients(policy):
    on_ranks(3, fsdp_case, policy, 3)


def narrow_case():
    """With fp32 sums, gradients of bf16 travel as they are; accumulated ones are fp32, and travel so."""
    from shingle.torch.data_parallel import library

    seen = []

    def noted(out, parts, scale, group, scatter=library.exchange_scatter):
        seen.append((parts.dtype, out.dtype))
        scatter(out, parts, scale, group)

    with engines_serve(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "exchange_scatter", noted)
        train(sharded(1, mesh_of(), ours=True, policy="bf16, fp32 sums"), steps=1)
        assert set(seen) == {(BF16, F32)}
        seen.clear()
        train(sharded(1, mesh_of(), ours=True, policy="bf16, fp32 sums"), steps=1, micro=2)
        assert set(seen) == {(F32, F32)}
        seen.clear()
        train(sharded(1, mesh_of(), ours=True, policy="bf16"), steps=1)
        assert set(seen) == {(BF16, BF16)}


def test_narrow_gradients_travel_as_they_are():
    on_ranks(2, narrow_case)


def options_case():
    mesh = mesh_of()
    for options in ({"reshard_after_forward": False}, {"reshard_after_forward": 2}):
        own = train(sharded(2, mesh, ours=False, **options))
        with engines_serve():
            close(train(sharded(2, mesh, ours=True, **options)), own)
    found = []
    for ours in (False, True):
        with engines_serve():
            model = sharded(3, mesh, ours=ours)
            model._set_unshard_async_op(True)
            for handle in [block.unshard(async_op=True) for block in model]:
                handle.wait()
            for before, after in itertools.pairwise(model):
                before.set_modules_to_forward_prefetch([after])
                after.set_modules_to_backward_prefetch([before])
            found.append(train(model))
    close(*found)
    with engines_serve():  # a factor of one's own: a premultiplied sum, which gloo itself does not have
        model = sharded(3, mesh, ours=True)
        for block in (model, *model):
            block.set_gradient_divide_factor(4.0 * mesh.size())
        quarters = train(model, steps=1)[1]
        for x, y in zip(quarters, train(sharded(3, mesh, ours=False), steps=1)[1], strict=True):
            torch.testing.assert_close(4 * x, y)


def test_options_of_fsdp():
    on_ranks(4, options_case)


def hybrid_case():
    """HSDP by a mesh of two dimensions, and sharding over one with replicas averaged by our hook."""
    mesh = mesh_of(2, 2, mesh_dim_names=("replicate", "shard"))
    own = train(sharded(4, mesh, ours=False))
    with engines_serve():
        close(train(sharded(4, mesh, ours=True)), own)
        model = make_model(4)
        for block in (*model, model):
            fully_shard(block, mesh=mesh["shard"])
        close(train(st().fsdp(model, replicas=mesh["replicate"].get_group())), own)


def test_hybrid_sharding():
    on_ranks(4, hybrid_case)


def compile_case():
    with engines_serve():
        compiled = train(sharded(5, mesh_of(), ours=True, compiled=True))
        close(compiled, train(sharded(5, mesh_of(), ours=False)))
        assert same(compiled, train(sharded(5, mesh_of(), ours=True, compiled=True)))
        whole = torch.compile(sharded(5, mesh_of(), ours=True), backend="aot_eager")
        close(train(whole), compiled)
    torch._dynamo.reset()


def test_compiled_blocks():
    on_ranks(2, compile_case)


def frozen_case():
    """Parameters of two dtypes are gathered as bytes."""

    def make(ours):
        model = make_model(6)
        model[1].up.weight = nn.Parameter(model[1].up.weight.to(torch.float64), requires_grad=False)
        model[1].forward = lambda x, block=model[1]: x + block.scale * block.down(
            torch.tanh(nn.functional.linear(x.double(), block.up.weight).float() + block.up.bias)
        )
        for block in (*model, model):
            fully_shard(block, mesh=mesh_of())
        return st().fsdp(model) if ours else model

    with engines_serve():
        model = make(ours=True)
        trained = [p for p in model.parameters() if p.requires_grad]
        losses = []
        for one in (model, make(ours=False)):
            loss = one(torch.ones(2, 7)).square().sum()
            loss.backward()
            losses.append(loss.item())
        assert losses[0] == losses[1] and all(p.grad is not None for p in trained)


def test_parameters_of_several_dtypes():
    on_ranks(2, frozen_case)


def refusals_case():
    shingle, mesh = st(), mesh_of()
    with pytest.raises(errors.InvalidArgument, match=r"call fully_shard\(\) on it first"):
        shingle.fsdp(make_model(0))
    with pytest.raises(errors.InvalidArgument, match="FSDP1"):
        shingle.fsdp(FullyShardedDataParallel(make_model(0), device_id=torch.device("cpu")))
    model = make_model(0)
    fully_shard(model[1], mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    with pytest.raises(errors.Unsupported, match="module '1' has CPUOffloadPolicy"):
        shingle.fsdp(model)
    model = make_model(0)
    fully_shard(model, mesh=mesh)

    class Own:
        pass

    model.set_custom_all_gather(Own())
    with pytest.raises(errors.InvalidArgument, match="communication of its own, Own"):
        shingle.fsdp(model)


def test_refusals_name_the_remedy():
    on_ranks(2, refusals_case)


def counters_case():
    shingle = st()
    before = shingle.counters()
    model = sharded(7, mesh_of(), ours=True)
    train(shingle.fsdp(model), steps=1)  # twice is as once
    after = shingle.counters()

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    groups = len(model)  # the root has no parameters of its own
    assert grown("fsdp.groups") == groups
    assert grown("sequential.reducescatter") == groups
    assert grown("sequential.allgather") >= groups


def test_counters():
    on_ranks(2, counters_case)


# -- DDP


def ddp_case(dtype, options):
    def make(hook):
        model = DistributedDataParallel(make_model(8).to(dtype), bucket_cap_mb=0.0005, **options)
        return Cast(st().ddp(model) if hook else model, dtype)

    own = train(make(False), micro=2)
    assert same(train(make(True), micro=2), own), "small buckets take c10d"
    with engines_serve():
        first, second = train(make(True), micro=2), train(make(True), micro=2)
    assert same(first, second)
    close(first, own, dtype)


class Cast(nn.Module):
    """Takes fp32 data."""

    def __init__(self, model, dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def no_sync(self):
        return self.model.no_sync()

    def forward(self, x):
        return self.model(x.to(self.dtype))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_ddp_as_its_own(world, dtype):
    on_ranks(world, ddp_case, dtype, {"gradient_as_bucket_view": world == 2})


def ddp_group_case():
    """A process group of one's own, and torch.compile."""
    group = dist.new_group(list(range(dist.get_world_size())))
    with engines_serve():
        model = DistributedDataParallel(make_model(9), process_group=group)
        model.register_comm_hook(group, st().ddp_hook)
        hooked = train(model)
        close(hooked, train(DistributedDataParallel(make_model(9))))
        model = st().ddp(DistributedDataParallel(make_model(9)))
        with pytest.raises(RuntimeError, match="can only be called once"):
            st().ddp(model)
        with pytest.raises(errors.InvalidArgument, match="of type Sequential, not DistributedDataParallel"):
            st().ddp(model.module)
        close(train(torch.compile(model, backend="aot_eager")), hooked)
    torch._dynamo.reset()


def test_ddp_groups_and_compile():
    on_ranks(2, ddp_group_case)


# -- FSDP2 by copy engines, of contexts of host ranks


def engine_fsdp_case(rank, ranks, policy):
    from shingle.torch import contexts

    mesh = mesh_of(ranks)
    own = train(sharded(1, mesh, ours=False, policy=policy))
    host = engines(ranks)
    first = train(sharded(1, mesh, ours=True, policy=policy))
    assert {shape.op for shape, _ in host.shapes} == {"allgather", "reducescatter"}
    assert not st().counters().get("sequential.allgather"), "the reserved memory is too small for FSDP2's buckets"
    heap = host.heaps[rank, contexts.GATHERS].heap
    close(first, own, POLICIES[policy].reduce_dtype or POLICIES[policy].param_dtype or F32)
    assert same(train(sharded(1, mesh, ours=True, policy=policy)), first)
    return len(heap.used)


@pytest.mark.parametrize("policy", ["fp32", "bf16, fp32 sums"])
def test_fsdp_by_engines(policy):
    assert set(on_threads(2, engine_fsdp_case, 2, policy).values()) == {0}, "registered memory that is still in use"


# -- the cases of gpu_ops.py, without a GPU


def gpu_case(name):
    from on_gpus import CASES

    try:
        CASES[name]()
    finally:
        st().configure(min_bucket_bytes=4 << 20, min_m=512, max_m=8192)


@pytest.mark.parametrize("name", ["random_buckets", "fsdp2", "ddp", "beside_tensor_parallelism"])
def test_cases_of_gpus(name):
    on_ranks(2, gpu_case, name)
