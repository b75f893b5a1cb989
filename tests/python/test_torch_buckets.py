"""Collectives of buckets: by c10d, by copy engines of host ranks, and what warmup chooses for them."""

import contextlib
import random
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle.torch import choices, configure, contexts, groups  # noqa: E402
from shingle.torch.choices import LIBRARY, PREDICTED, Shape, Table  # noqa: E402
from shingle.torch.data_parallel import buckets, registered, tuning  # noqa: E402
from shingle.torch.settings import settings  # noqa: E402
from shingle.torch.timing import forced  # noqa: E402
from thread_ranks import engines, on_threads  # noqa: E402

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def buckets_case(seed):
    world, rank, draw = dist.get_world_size(), dist.get_rank(), random.Random(seed)
    configure(min_bucket_bytes=0)  # engines would move all of them
    try:
        for _ in range(60):
            shard = draw.choice([0, 1, 2, 3, 5, 8, 31, 64, 1000, 1024])
            dtype = draw.choice([F32, BF16, F16, torch.float64])
            op = draw.choice([dist.ReduceOp.SUM, dist.ReduceOp.AVG])
            generator = torch.Generator().manual_seed(draw.randint(0, 1 << 30))
            everyones = torch.randn(world, world * shard, generator=generator)
            parts = everyones.to(dtype)
            wide = torch.promote_types(dtype, F32)
            total = parts[0].to(wide)
            for part in parts[1:]:
                total = total + part
            if op == dist.ReduceOp.AVG:
                total = total * (1 / world)
            mine = slice(rank * shard, (rank + 1) * shard)
            for out_dtype in {dtype, F32} if dtype in (BF16, F16) else {dtype}:
                out = torch.full((shard,), torch.nan, dtype=out_dtype)
                buckets.scatter(out, parts[rank].clone(), dist.group.WORLD, op)
                if dtype == torch.float64:
                    torch.testing.assert_close(out, total[mine])
                else:
                    assert torch.equal(out, total[mine].to(out_dtype)), (shard, dtype, out_dtype, op)
            x = parts[rank, : max(world * shard - draw.randint(0, world), 0)].clone()
            if x.numel() and dtype != torch.float64:
                found = buckets.reduce(x, dist.group.WORLD, 1 / world)
                expected = parts[0].float()
                for part in parts[1:]:
                    expected = expected + part
                assert torch.equal(found.wait(), (expected * (1 / world)).to(dtype)[: x.numel()])
            whole = buckets.empty_gathered(world * shard, dtype, x.device, dist.group.WORLD)
            own = whole[mine].copy_(parts[0, mine])
            work = buckets.gather(whole, own, dist.group.WORLD, draw.choice([False, True]))
            if work is not None:
                work.wait()
            assert torch.equal(whole, parts[0])
    finally:
        configure(min_bucket_bytes=4 << 20)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_random_buckets(world):
    on_ranks(world, buckets_case, world)


# -- copy engines of host ranks

def engine_buckets_case(rank, ranks, seed):
    host, draw, group = engines(ranks), random.Random(seed), dist.group.WORLD
    buckets.reserve(group, torch.device("cpu"), [1 << 16])
    for _ in range(12):
        shard, dtype = draw.choice([4, 8, 24, 100, 512]), draw.choice([F32, BF16, F16])
        generator = torch.Generator().manual_seed(draw.randint(0, 1 << 30))
        parts = torch.randn(ranks, ranks * shard, generator=generator).to(dtype)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part
        mine = slice(rank * shard, (rank + 1) * shard)
        out = torch.full((shard,), torch.nan, dtype=draw.choice([dtype, F32]))
        buckets.scatter(out, parts[rank].clone(), group, dist.ReduceOp.AVG)
        assert torch.equal(out, (total * (1 / ranks)).to(out.dtype)[mine])
        x = parts[rank].clone()
        assert torch.equal(buckets.reduce(x, group, 0.5).wait(), (total * 0.5).to(dtype))
        whole = buckets.empty_gathered(ranks * shard, dtype, torch.device("cpu"), group)
        heap = host.heaps[rank, contexts.GATHERS].heap
        assert heap.holds(whole), "registered"
        whole.fill_(torch.nan)
        own = whole[mine].copy_(parts[0, mine])
        buckets.gather(whole, own, group)
        assert torch.equal(whole, parts[0])
        del whole, own
        assert not heap.used
    assert {shape.op for shape, _ in host.shapes} == {"allgather", "reducescatter", "allreduce"}


@pytest.mark.parametrize("ranks", [2, 3])
def test_engines_move_buckets(ranks):
    on_threads(ranks, engine_buckets_case, ranks, 3)


# -- what warmup chooses

GATHER, SUM = Shape("allgather", 1, 1, "f32", 2), Shape("reducescatter", 1, 1, "bf16", 2, f32_sums=True)
ENGINES = "copy-engine trigger=direct variant=ring"


@contextlib.contextmanager
def fake_times(monkeypatch, measure, step_us=None):
    """Times of buckets and steps as functions give them, without a GPU."""
    table = Table()
    for module in (choices, tuning):
        monkeypatch.setattr(module, "table", table)
    monkeypatch.setattr(tuning, "measure", measure)
    monkeypatch.setattr(tuning, "step_us", step_us)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(settings, "min_bucket_bytes", 4096)
    yield table


def measured(group, shape, sizes, device):
    """Engines win from 8192 elements on."""
    return {m: {LIBRARY: 100.0, PREDICTED: 101.0, ENGINES: 90.0 if m >= 8192 else 120.0} for m in sizes}


USED = {(None, GATHER, 0): {2048, 8192, 20000}, (None, SUM, 0): {10000}}


def test_tuning_takes_what_is_fastest_at_each_size(monkeypatch):
    with fake_times(monkeypatch, measured) as table:
        tuning.tune(USED, step=None, confirm=0)
        assert [table.choose(GATHER, m) for m in (10, 2048, 8192, 20000, 20001)] == [
            LIBRARY, LIBRARY, ENGINES, ENGINES, LIBRARY,
        ]  # fmt: skip
        assert [table.choose(SUM, m) for m in (10, 2047, 2048, 10000, 10001)] == [
            LIBRARY, LIBRARY, ENGINES, ENGINES, LIBRARY,
        ]  # fmt: skip


STEPS = [  # time of a step by what gathers, and by what sums; what is kept
    ({LIBRARY: 50, PREDICTED: 50, ENGINES: 49}, {LIBRARY: 50, PREDICTED: 50, ENGINES: 49}, (ENGINES, ENGINES)),
    ({LIBRARY: 50, PREDICTED: 50, ENGINES: 50}, {LIBRARY: 50, PREDICTED: 50, ENGINES: 50}, (LIBRARY, LIBRARY)),
    ({LIBRARY: 50, PREDICTED: 45, ENGINES: 48}, {LIBRARY: 50, PREDICTED: 46, ENGINES: 47}, (PREDICTED, PREDICTED)),
    ({LIBRARY: 50, PREDICTED: 40, ENGINES: 52}, {LIBRARY: 50, PREDICTED: 55, ENGINES: 52}, (PREDICTED, LIBRARY)),
    ({LIBRARY: 50, PREDICTED: 60, ENGINES: 48}, {LIBRARY: 50, PREDICTED: 60, ENGINES: 53}, (ENGINES, LIBRARY)),
]


@pytest.mark.parametrize("gather_us, sum_us, kept", STEPS)
def test_tuning_keeps_what_the_step_confirms(monkeypatch, gather_us, sum_us, kept):
    steps = []

    def step_us(step):
        steps.append((choices.table.choose(GATHER, 8192), choices.table.choose(SUM, 10000)))
        return gather_us[steps[-1][0]] + sum_us[steps[-1][1]]

    with fake_times(monkeypatch, measured, step_us) as table:
        tuning.tune(USED, step=None, confirm=3)
        uniform = [(choice, choice) for choice in (LIBRARY, PREDICTED, ENGINES)]
        assert steps[:12] == uniform * 4, "in turns, the first of which is not counted"
        assert (table.choose(GATHER, 8192), table.choose(SUM, 10000)) == kept


def test_interrupted_tuning_keeps_what_was_confirmed(monkeypatch):
    def step_us(step):
        gathers, sums = choices.table.choose(GATHER, 8192), choices.table.choose(SUM, 10000)
        if gathers != sums:
            raise KeyboardInterrupt
        return 90 if gathers == PREDICTED else 100

    with fake_times(monkeypatch, measured, step_us) as table:
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(USED, step=None, confirm=2)
        assert table.choose(GATHER, 8192) == table.choose(SUM, 10000) == PREDICTED


@pytest.mark.parametrize("at", ["measure", "step"])
def test_interrupted_tuning_leaves_buckets_to_c10d(monkeypatch, at):
    def interrupt(*given):
        raise KeyboardInterrupt

    def measure(group, shape, sizes, device):
        return interrupt() if at == "measure" and shape == SUM else measured(group, shape, sizes, device)

    with fake_times(monkeypatch, measure, interrupt) as table:
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(USED, step=None, confirm=3)
        assert {table.choose(GATHER, m) for m in (2048, 8192, 1 << 30)} == {LIBRARY}
        assert table.choose(SUM, 10000) == LIBRARY


def test_sizes_that_are_measured():
    assert tuning.spread({5, 3, 4}) == [3, 4, 5]
    spread = tuning.spread(set(range(1, 1001)))
    assert len(spread) == tuning.MOST_SIZES and spread[0] == 1 and spread[-1] == 1000


def test_choice_by_size_without_a_table(monkeypatch):
    monkeypatch.setattr(settings, "min_bucket_bytes", 4 << 20)
    table = Table()
    assert [table.choose(GATHER, m) for m in ((1 << 20) - 1, 1 << 20, 1 << 30)] == [LIBRARY, PREDICTED, PREDICTED]
    assert [table.choose(SUM, m) for m in ((2 << 20) - 1, 2 << 20)] == [LIBRARY, PREDICTED]


def test_rows_of_operators():
    """Rows have a power of two of elements, so that buckets of any size fit."""
    group = buckets.Group("g", None, 0, 2)
    with forced(PREDICTED):
        for shard, width in ((4096, 1024), (24, 8), (7, 1), (3 * 512, 512)):
            bucket = buckets.Bucket(GATHER, 2 * shard, shard, group, torch.device("cpu"))
            operator = bucket.operator(0.5)
            assert (operator.n, operator.k, operator.scale) == (width, width, 0.5)
            assert bucket.rows(operator) == 2 * shard // width
        one = buckets.Bucket(GATHER._replace(ranks=1), 8, 8, group, torch.device("cpu"))
        huge = buckets.Bucket(GATHER, 2 << 32, 1 << 32 | 1, group, torch.device("cpu"))
        assert one.operator(1.0) is huge.operator(1.0) is None, "nothing to move; more rows than an operator has"
    assert contexts.rounded_up(1000, 2) == 1024 and contexts.rounded_up(6, 3) == 6
    for m, step in ((12345, 1), (12345 * 3, 3)):
        largest = contexts.rounded_up(m, step)
        assert m <= largest <= 1.13 * m and largest % step == 0


# -- registered memory


class Memory:
    """A context with memory at an address."""

    address = 1

    def __init__(self, size):
        import ctypes

        self.memory = (ctypes.c_char * size)()
        self.first = ctypes.addressof(self.memory)

    def allocate(self, rank, size):
        return self.first


def test_any_two_buckets_that_fit_together_find_room():
    draw, sizes, cpu = random.Random(1), [3 << 10, 5 << 10, 8 << 10, 1], torch.device("cpu")
    heap = registered.Heap(Memory(13 << 10), 0, 13 << 10)
    alive = [heap.empty(sizes[0], torch.uint8, cpu)]
    for _ in range(300):
        other = draw.choice([size for size in sizes if size + alive[0].numel() <= 13 << 10])
        alive.append(heap.empty(other, torch.uint8, cpu))
        assert alive[1] is not None, (other, heap.used)
        first, second = sorted(heap.used.items())
        assert first[0] + first[1] <= second[0] and second[0] + second[1] <= heap.first + heap.size
        assert all(heap.holds(one) and one.data_ptr() % 512 == heap.first % 512 for one in alive)
        alive.pop(0)
    assert heap.empty(13 << 10, torch.uint8, cpu) is None, "no room beside the other"
    alive.clear()
    assert not heap.used and heap.empty(13 << 10, torch.uint8, cpu) is not None


def test_the_garbage_collector_may_free_a_bucket_anywhere():
    heap, cpu = registered.Heap(Memory(4 << 10), 0, 4 << 10), torch.device("cpu")
    bucket = heap.empty(4 << 10, torch.uint8, cpu)
    with heap.lock:  # as it is held where the collector may run
        del bucket
    assert not heap.used and heap.empty(4 << 10, torch.uint8, cpu) is not None


def test_what_a_collective_uses_stays_alive_until_it_is_awaited():
    tensor = torch.zeros(1)
    alive = weakref.ref(tensor)
    work = buckets.Work(None, (tensor,))
    del tensor
    assert alive() is not None and work.wait()
    assert alive() is None


# -- SMs, and deadlines


def deadline_case():
    group, device = groups.find_group(dist.group.WORLD.group_name), torch.device("cpu")
    assert contexts.deadline_us(group, device, contexts.PRODUCTS) == 0, "30 s"
    assert contexts.deadline_us(group, device, contexts.SUMS) == 60e6, "that of ranks.py"
    configure(timeout_us=5e6)
    try:
        assert contexts.deadline_us(group, device, contexts.SUMS) == 5e6
    finally:
        configure(timeout_us=0)


def test_buckets_wait_as_long_as_those_of_c10d():
    on_ranks(2, deadline_case)


def test_products_leave_room_for_buckets(monkeypatch):
    """A context of products that may hold all SMs, and buckets beside it, could wait for each other."""

    class Properties:
        multi_processor_count = 132

    class Made:
        workers = 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(contexts, "_with_buckets", set())
    monkeypatch.setattr(contexts, "_contexts", {("group", 0, contexts.PRODUCTS): Made})
    assert contexts.workers_of_products(0) == 0, "all"
    contexts.expect_buckets(1)
    assert contexts.workers_of_products(1) == 130
    with pytest.raises(errors.Unsupported, match=r"call shingle.torch.release\(\) once and repeat the step"):
        contexts.expect_buckets(0)
    contexts._contexts.clear()  # as release() does
    contexts.expect_buckets(0)
    assert contexts.workers_of_products(0) == 130
    Made.workers = 130
    contexts._contexts["group", 0, contexts.PRODUCTS] = Made
    contexts.expect_buckets(0)
    monkeypatch.setattr(settings, "workers", 100)
    assert contexts.workers_of_products(0) == 100
