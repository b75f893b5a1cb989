"""The CUDA kernels of experts, without a GPU, and their choice."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from host_contexts import K, N, close, host_ranks  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle.torch import contexts, experts, overlapped, warming  # noqa: E402
from shingle.torch.choices import PREDICTED, Shape, table  # noqa: E402
from shingle.torch.experts import kernels, routing  # noqa: E402
from shingle.torch.experts.slices import Slices  # noqa: E402
from shingle.torch.experts.slots import ReplicatedSlots, SlicedSlots, Slots  # noqa: E402
from thread_ranks import engines, on_threads  # noqa: E402


SLOTS = {(False, False): Slots, (True, False): SlicedSlots, (True, True): ReplicatedSlots}  # by options of the ops


def experts_case(tensor_parallel):
    group, counts = overlapped.find_group("0"), overlapped.counts
    counts.clear()
    with host_ranks(), warming.forced(PREDICTED):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            same = functools.partial(close, bound=1e-5 if dtype == torch.float32 else 3e-2)
            for tokens, count, topk in ((5, 4, 2), (3, 8, 1), (6, 4, 4)):
                ids = torch.randint(count, (tokens, topk))
                found = routing.exchange(ids, count, group, "", ids.device)
                layout = kernels.layout_of(found, topk, count, group, ids.device, tensor_parallel)
                wide, weights = torch.randn(tokens, 2 * K).to(dtype), torch.rand(tokens, topk)
                up, down, rows = (
                    (torch.randn(sizes) / 4).to(dtype) for sizes in ((count, 8, K), (count, N, 4), (layout.received, 4))
                )  # fmt: skip
                turned = [w.transpose(1, 2).contiguous().transpose(1, 2) for w in (up, down)]
                for x in (wide[:, :K].contiguous(), wide[:, :K], wide[:, ::2]):
                    for w_up, w_down in ((up, down), turned, (turned[0], down), (up[:, ::2], down[:, :, ::2])):
                        chain = x, w_up, w_down, weights, layout
                        same(*by_both("moe", *chain, "swiglu"))
                        same(*by_both("dispatch", x, w_up, layout))
                        same(*by_both("combine", rows[:, : w_down.shape[2]], w_down, weights, layout))
                for activation, inner in (("relu", 8), ("gelu", 8), ("silu", 8), (None, 8), ("swiglu", 4)):
                    chain = wide[:, :K], up, (torch.randn(count, N, inner) / 4).to(dtype), weights
                    same(*by_both("moe", *chain, layout, activation))
                    given = torch.randn(tokens, N).to(dtype), *chain, found, "0", activation, tensor_parallel
                    for wanted in ([True] * 4, [True, False, False, True], [False, True, False, False]):
                        same(*(kernels.moe_gradients(way, *given, wanted) for way in WAYS))
                    options = activation, tensor_parallel
                    out, again = kernels.moe(experts.overlapped, *chain[:3], ids, weights, "0", *options)
                    same(out, experts.sequential.moe(*chain, layout, activation))
                    assert torch.equal(again, found)
    for op in layout.OPS.values():
        assert counts["overlapped." + op] > 0 and not counts["sequential." + op], counts


def capacity_case(*layout):
    """The device routes, in both ways alike: what is dropped, results and gradients. Empty slots are zeros."""
    counts = overlapped.counts
    counts.clear()
    kind = SLOTS[layout]
    with host_ranks(), warming.forced(PREDICTED):
        group = overlapped.find_group("0")
        for dtype in (torch.float32, torch.bfloat16):
            same = functools.partial(close, bound=1e-5 if dtype == torch.float32 else 3e-2)
            for tokens, count, topk, capacity, most in ((5, 4, 2, 2, 5), (9, 8, 1, 1, 12), (6, 4, 4, 3, 6), (0, 4, 2, 3, 4)):
                ids, weights = torch.randint(-2, count + 1, (tokens, topk)), torch.rand(tokens, topk)
                x, up, down = (
                    (torch.randn(sizes) / 4).to(dtype) for sizes in ((tokens, K), (count, 8, K), (count, N, 4))
                )
                given = x, up, down, ids, weights, "0", "swiglu", capacity, most, *layout
                same(*(kernels.moe_with_capacity(way, *given) for way in WAYS))
                grad = torch.randn(tokens, N).to(dtype)
                for wanted in ([True] * 4, [True, False, False, True], [False, True, False, False]):
                    same(*(kernels.moe_with_capacity_gradients(way, grad, *given, wanted) for way in WAYS))
                same(*by_both("dispatch", x, up, kind(ids.int(), count, group, capacity, most)))
    for op in filter(None, kind.OPS.values()):
        assert counts["overlapped." + op] > 0 and not counts["sequential." + op], counts


@pytest.mark.parametrize("layout", SLOTS)
def test_kernels_with_a_capacity(layout):
    on_ranks(1, capacity_case, *layout)


def capacity_choice_case(*layout):
    """Calls with a capacity are overlapped without a measurement, also in a capture."""
    counts = overlapped.counts
    x, up, down = torch.randn(4, K), torch.randn(2, 8, K), torch.randn(2, N, 4)
    ids, weights = torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1)

    def call():
        counts.clear()
        given = x, up, down, ids, weights, "0", "swiglu", 3, None, *layout
        kernels.moe_with_capacity(experts.overlapped, *given)
        return dict(counts)

    op = SLOTS[layout].OPS["moe"]

    with host_ranks():
        assert call() == {f"overlapped.{op}": 1}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            assert call() == {f"overlapped.{op}": 1}
        shape = Shape(op, N, K, "f32", 1, inner=4, experts=(2, 1), capacity=3)
        assert table.mechanisms(shape) == [shape] and shape.key == shape


@pytest.mark.parametrize("layout", SLOTS)
def test_choice_with_a_capacity(layout):
    on_ranks(1, capacity_choice_case, *layout)


WAYS = experts.overlapped, experts.sequential


def by_both(kernel, *args):
    return (getattr(way, kernel)(*args) for way in WAYS)


@pytest.mark.parametrize("tensor_parallel", [False, True])
def test_kernels_of_experts(tensor_parallel):
    on_ranks(1, experts_case, tensor_parallel)


def ranks_case(rank, ranks, tensor_parallel):
    """Operators of several ranks take and give rows in the order of the layouts, one rank without tokens."""
    engines(ranks)
    group, generator = dist.group.WORLD.group_name, torch.Generator().manual_seed(rank)
    tokens, count, topk = (5, 0, 3)[rank], 6, 2
    ids = torch.randint(count, (tokens, topk), generator=generator)
    mine = count if tensor_parallel else count // ranks
    sizes = (tokens, K), (mine, 8, K), (mine, N, 4), (tokens, N)
    drawn = generator.get_state()
    for choice in ("sequential", "chunked", "signal", "fused"):
        dist.barrier()
        table.forced = choice
        generator.set_state(drawn)  # the same matrices for every choice
        for dtype in (torch.float32, torch.bfloat16):
            same = functools.partial(close, bound=1e-5 if dtype == torch.float32 else 3e-2)
            x, up, down, grad = (torch.randn(of, generator=generator).to(dtype) for of in sizes)
            weights = torch.rand(tokens, topk, generator=generator)
            (out, found), (expected, _) = (
                kernels.moe(way, x, up, down, ids, weights, group, "swiglu", tensor_parallel) for way in WAYS
            )
            same(out, expected)
            for wanted in ([True] * 4, [True, False, False, True]):
                given = grad, x, up, down, weights, found, group, "swiglu", tensor_parallel, wanted
                same(*(kernels.moe_gradients(way, *given) for way in WAYS))
    kind = Slices if tensor_parallel else routing.Layout
    return sorted(op for op in kind.OPS.values() if overlapped.counts["overlapped." + op] > 0)


@pytest.mark.parametrize("tensor_parallel", [False, True])
def test_kernels_of_experts_on_several_ranks(tensor_parallel):
    for counted in on_threads(3, ranks_case, 3, tensor_parallel).values():
        assert len(counted) == 3


def capacity_ranks_case(rank, ranks, replicated):
    """Tensor-parallel experts with a capacity on several ranks, one without tokens: as c10d computes them."""
    engines(ranks)
    group, own = dist.group.WORLD.group_name, torch.Generator().manual_seed(rank)
    generator = torch.Generator().manual_seed(7) if replicated else own
    tokens, count, topk, most = (5, 0, 3)[0 if replicated else rank], 4, 2, 6
    ids = torch.randint(-1, count + 1, (tokens, topk), generator=generator)
    for choice in ("sequential", "signal", "fused") if replicated else ("sequential", "chunked", "signal", "fused"):
        dist.barrier()
        table.forced = choice
        x, grad = (torch.randn(of, generator=generator) for of in ((tokens, K), (tokens, N)))
        up, down = (torch.randn(of, generator=own) for of in ((count, 8, K), (count, N, 4)))
        weights = torch.rand(tokens, topk, generator=generator)
        given = x, up, down, ids, weights, group, "swiglu", 2, most, True, replicated
        for got, expected in zip(*(kernels.moe_with_capacity(way, *given) for way in WAYS)):
            close(got, expected, bound=1e-5)
        for wanted in ([True] * 4, [True, False, False, True]):
            close(*(kernels.moe_with_capacity_gradients(way, grad, *given, wanted) for way in WAYS), bound=1e-5)
    return [op for op in SLOTS[True, replicated].OPS.values() if op and overlapped.counts["overlapped." + op] > 0]


@pytest.mark.parametrize("replicated", [False, True])
def test_sliced_kernels_with_a_capacity_on_several_ranks(replicated):
    for counted in on_threads(3, capacity_ranks_case, 3, replicated).values():
        assert len(counted) == (2 if replicated else 3)


def candidates_case():
    """Each mechanism that warmup tries for experts serves the layer and both halves, and computes what c10d does."""
    group, counts = overlapped.find_group("0"), overlapped.counts
    ids, weights = torch.randint(4, (9, 2)), torch.rand(9, 2)
    x, up, down = torch.randn(9, K), torch.randn(4, 8, K), torch.randn(4, N, 4)
    with host_ranks():
        layout = routing.Layout(routing.exchange(ids, 4, group, "", ids.device), 2, 4, group, ids.device)
        for op, kernel, args, sizes in (
            ("moe", "moe", (x, up, down, weights, layout, "swiglu"), {"n": N, "inner": 4, "activation": "swiglu"}),
            ("alltoall+grouped-gemm", "dispatch", (x, up, layout), {"n": 8}),
            ("grouped-gemm+alltoall", "combine", (torch.randn(layout.received, 4), down, weights, layout), {"n": N}),
        ):
            assert warming.CANDIDATES[op] == ["sequential", "chunked", "signal", "fused"]
            for choice in warming.CANDIDATES[op]:
                counts.clear()
                with warming.forced(choice):
                    close(*by_both(kernel, *args), bound=1e-4)
                assert counts["overlapped." + op] == 1, (op, choice, counts)
                # Without a routing, only operators with a capacity name their mechanism.
                shape = Shape(op, k=K, dtype="f32", ranks=1, experts=(4, 2), capacity=9, mechanism=choice, **sizes)
                assert contexts.find_call(group, shape, 9, None).mechanism(9) == choice


def test_candidates_of_experts():
    on_ranks(1, candidates_case)


def experts_choice_case(op):
    """Experts run as mm + c10d unless the table says otherwise, and the context serves them."""
    group, counts, fused = overlapped.find_group("0"), overlapped.counts, {f"overlapped.{op}": 1}
    measured, unserved = Shape(op, N, K, "f32", 1, inner=4, experts=(2, 1)), {f"sequential.{op}": 1}
    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        assert table.mechanisms(measured) == []
        for dtype, tokens, rows, wanted in (
            (torch.float32, 4, {}, unserved), (torch.float32, 4, {measured: [(64, "fused")]}, fused),
            (torch.float32, 65, {measured: [(64, "fused")]}, unserved),
            (torch.float64, 4, {measured: [(64, "fused")]}, {}), (torch.float32, 0, {measured: [(64, "fused")]}, {}),
        ):  # fmt: skip
            patch.setattr(table, "rows", rows)
            counts.clear()
            x, up = torch.randn(tokens, K).to(dtype), torch.randn(2, 8, K).to(dtype)
            ids, weights = torch.zeros(tokens, 1, dtype=torch.int64), torch.ones(tokens, 1, dtype=dtype)
            given = x, up, torch.randn(2, N, 4).to(dtype), ids, weights, "0", "swiglu", op == "moe-tp"
            out, _ = kernels.moe(experts.overlapped, *given)
            assert out.shape == (tokens, N)
            assert counts == wanted, counts
    with host_ranks(capturing=True), pytest.raises(errors.Unsupported, match="the host reads topk_ids"):
        routing.exchange(ids, 2, group, "", torch.device("cuda"))


@pytest.mark.parametrize("op", ["moe", "moe-tp"])
def test_choice_of_experts(op):
    on_ranks(1, experts_choice_case, op)
