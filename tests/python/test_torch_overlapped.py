"""The CUDA kernels without a GPU: their calls go to a context of one host rank, on CPU tensors.

This checks what they pass (roles, shapes, strides, transposes) and how they choose; not streams.
"""

import contextlib
import ctypes
import functools
import os
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import _abi, errors  # noqa: E402
from shingle.context import World  # noqa: E402
from shingle.torch import configure, contexts, experts, overlapped, sequential, shapes, warming  # noqa: E402
from shingle.torch.choices import LIBRARY, PREDICTED, Shape, Table, by, fastest, table  # noqa: E402
from shingle.torch.experts import kernels, routing  # noqa: E402
from shingle.torch.settings import settings  # noqa: E402

if not os.path.exists(_abi.library_path()):
    pytest.skip("no libshingle.so: set SHINGLE_LIBRARY", allow_module_level=True)

K, N = 8, 6


@contextlib.contextmanager
def host_ranks(capturing=False):
    """Contexts of one host rank in place of CUDA's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "make_world", lambda group, device: World(backend="host", ranks=1))
        patch.setattr(overlapped, "current_stream", lambda index: 0)
        patch.setattr(torch.cuda, "current_device", lambda: None)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        patch.setattr(overlapped, "enqueue", enqueue_and_wait)
        patch.setattr(overlapped, "staged", host_matrix)
        configure(min_m=1, max_m=64, native=False)
        yield
        contexts.release()


def enqueue_and_wait(*args, enqueue=overlapped.enqueue, **options):
    """Host ranks read the tensors later. CUDA's allocator orders their reuse; the CPU's does not."""
    enqueue(*args, **options)
    for made in contexts._contexts.values():
        made.context.synchronize()


def host_matrix(address, rows, columns, dtype):
    memory = (ctypes.c_char * (rows * columns * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


def results(kernel, *args):
    """Results of the overlapped and of the sequential kernel."""
    return getattr(overlapped, kernel)(*args), getattr(sequential, kernel)(*args)


def kernels_case():
    with host_ranks():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):

            def random(*shape, dtype=dtype):
                return torch.randn(shape).to(dtype)

            wide, w, up, down = random(5, 2 * K), random(N, K), random(8, K), random(N, 4)
            weights = [w, w.t().contiguous().t(), random(N, 2 * K)[:, :K], random(N, 2 * K)[:, ::2]]
            for x in (wide[:, :K].contiguous(), wide[:, :K], wide[:, ::2]):
                for weight in weights:
                    close(*results("gemm_reduce_scatter", x, weight, "0"))
                    close(*results("gemm_all_reduce", x, weight, "0", random(N)))
                    close(*results("all_gather_gemm", x, [weight], "0"))
                    close(*results("all_gather_gemm", x, [w[:2], weight, weight], "0", None, True))
                    close(*results("all_gather_gemm", x, [weight], "0", 5, True))
                    close(*results("gather_gradients", random(5, N), x, weight, "0", True), dense=False)
                    close(*results("all_to_all_gemm", x, weight, "0", [5]))
                    close(*results("gemm_all_to_all", x, weight, "0", [5]))
                wide_heads = random(5, 4 * K)
                for q in (wide_heads[:, : 2 * K].contiguous(), wide_heads[:, : 2 * K], wide_heads[:, ::2]):
                    for causal in (False, True):
                        k, v = random(5, K), random(5, K)
                        for to in (random(N, 2 * K), random(2 * K, N).t()):
                            close(*results("attention_reduce_scatter", q, k, v, to, "0", K // 2, causal))
                        close(*results("ulysses_attention", q, k, v, "0", K // 2, causal))
                        close(*results("ring_attention", q, k, v, "0", K // 2, causal, False, 5))
                        close(*results("ring_attention", q, k, v, "0", K // 2, causal, True, 5))
                        for order in ((causal, False, 5), (causal, True, 5)):
                            ring = q, k, v, "0", K // 2, *order
                            kept, expected = results("ring_attention_with_lse", *ring)
                            close(kept, expected)
                            assert kept[1].dtype == torch.float32
                            torch.testing.assert_close(kept[1], expected[1], atol=1e-5, rtol=1e-5)
                            for grad in (random(5, 2 * K), random(5, 4 * K)[:, ::2]):
                                close(*results("ring_gradients", grad, q, k, v, *kept, *ring[3:]))
                norm = random(5, N), random(N)
                close(*results("gemm_all_reduce_norm", x, w, *norm, "0", random(N), 1e-3))
                close(*results("gemm_all_reduce_norm", x, w, *norm, "0", None, 1e-5))
                close(*results("gemm_all_reduce_norm", x / 1e3, w, norm[0] / 1e3, norm[1], "0", None, 0.0))
                for activation in ("relu", "gelu", "silu", "swiglu", None):
                    close(*results("gemm_reduce_scatter", x, w, "0", random(N), activation))
                    inner = random(N, 4 if activation == "swiglu" else 8)
                    close(*results("mlp", x, up, inner, "0", activation))
                close(*results("mlp", x, up, down.t().contiguous().t(), "0", "swiglu"))
        for op in ("mlp", "attention+reducescatter", "ulysses-attention", "allgather+attention", "attention-backward"):
            assert overlapped.counts["overlapped." + op] > 0 and not overlapped.counts["sequential." + op]


def close(got, expected, dense=True, bound=5e-2):
    flat = torch.utils._pytree.tree_leaves
    for g, e in zip(flat(got), flat(expected), strict=True):
        assert g.shape == e.shape and g.dtype == e.dtype and g.stride() == e.stride()
        assert g.is_contiguous() or not dense
        torch.testing.assert_close(g, e, atol=bound, rtol=bound)


def test_kernels_pass_what_the_context_expects():
    on_ranks(1, kernels_case)


def experts_case():
    group, counts = overlapped.find_group("0"), overlapped.counts
    with host_ranks(), warming.forced(PREDICTED):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            same = functools.partial(close, bound=1e-5 if dtype == torch.float32 else 3e-2)
            for tokens, count, topk in ((5, 4, 2), (3, 8, 1), (6, 4, 4)):
                ids = torch.randint(count, (tokens, topk))
                found = routing.exchange(ids, count, group, "", ids.device)
                layout = routing.Layout(found, topk, count, group, ids.device)
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
                    given = torch.randn(tokens, N).to(dtype), *chain, found, "0", activation
                    for wanted in ([True] * 4, [True, False, False, True], [False, True, False, False]):
                        same(*(kernels.moe_gradients(way, *given, wanted) for way in WAYS))
                    out, again = kernels.moe(experts.overlapped, *chain[:3], ids, weights, "0", activation)
                    same(out, experts.sequential.moe(*chain, layout, activation))
                    assert torch.equal(again, found)
    for op in ("moe", "alltoall+grouped-gemm", "grouped-gemm+alltoall"):
        assert counts["overlapped." + op] > 0 and not counts["sequential." + op]


WAYS = experts.overlapped, experts.sequential


def by_both(kernel, *args):
    return (getattr(way, kernel)(*args) for way in WAYS)


def test_kernels_of_experts():
    on_ranks(1, experts_case)


def experts_choice_case():
    """Experts run as mm + c10d unless the table says otherwise, and the context serves them."""
    group, counts, fused = overlapped.find_group("0"), overlapped.counts, {"overlapped.moe": 1}
    measured = Shape("moe", N, K, "f32", 1, inner=4, experts=(2, 1))
    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        assert table.mechanisms(measured) == []
        for dtype, tokens, rows, wanted in (
            (torch.float32, 4, {}, {"sequential.moe": 1}), (torch.float32, 4, {measured: [(64, "fused")]}, fused),
            (torch.float32, 65, {measured: [(64, "fused")]}, {"sequential.moe": 1}),
            (torch.float64, 4, {measured: [(64, "fused")]}, {}), (torch.float32, 0, {measured: [(64, "fused")]}, {}),
        ):  # fmt: skip
            patch.setattr(table, "rows", rows)
            counts.clear()
            x, up = torch.randn(tokens, K).to(dtype), torch.randn(2, 8, K).to(dtype)
            ids, weights = torch.zeros(tokens, 1, dtype=torch.int64), torch.ones(tokens, 1, dtype=dtype)
            out, _ = kernels.moe(experts.overlapped, x, up, torch.randn(2, N, 4).to(dtype), ids, weights, "0", "swiglu")
            assert out.shape == (tokens, N)
            assert counts == wanted, counts
    with host_ranks(capturing=True), pytest.raises(errors.Unsupported, match="the host reads topk_ids"):
        routing.exchange(ids, 2, group, "", torch.device("cuda"))


def test_choice_of_experts():
    on_ranks(1, experts_choice_case)


def attention_choice_case():
    """A forward by c10d keeps a log-sum-exp if backward may be overlapped; without one backward attends again."""
    q, k, v, grad = (torch.randn(5, columns) for columns in (2 * K, K, K, 2 * K))
    ring, counts = (q, k, v, "0", K // 2, True, False, 5), overlapped.counts
    forward = Shape("allgather+attention", 2 * K, 2 * K, "f32", 1, attention=(4, 2, K // 2, True))
    backward = forward._replace(op="attention-backward")
    _, expected = sequential.ring_attention_with_lse(*ring)
    gradients = sequential.ring_gradients(grad, q, k, v, None, None, *ring[3:])
    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        for overlaps in ({}, {forward}, {backward}, {backward._replace(captured=True)}, {forward, backward}):
            by_table = {of: [(64, "ring" if of in overlaps else LIBRARY)]
                        for shape in (forward, backward) for of in (shape, shape._replace(captured=True))}  # fmt: skip
            patch.setattr(table, "rows", by_table)
            counts.clear()
            out, lse = overlapped.ring_attention_with_lse(*ring)
            if overlaps:
                torch.testing.assert_close(lse, expected)
            else:
                assert lse.isnan().all()
            close(overlapped.ring_gradients(grad, q, k, v, out, lse, *ring[3:]), gradients)
            close(overlapped.ring_gradients(grad, q, k, v, None, None, *ring[3:]), gradients)
            for shape in (forward, backward):
                way = "overlapped." if shape in overlaps else "sequential."
                assert counts == counts | {way + shape.op: 1}, (overlaps, counts)


def test_choices_of_attention_agree_on_the_log_sum_exp():
    on_ranks(1, attention_choice_case)


def test_rule_of_the_backward_of_attention():
    """What decides on CUDA whether forward keeps a log-sum-exp."""

    class Cuda:
        is_cuda, device, shape = True, 0, (4, 256)

        def __init__(self, dtype):
            self.dtype = dtype

    def takes(dtype, head_dim, capability=(9, 0), cudnn=shapes.LEAST_CUDNN):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
            patch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
            return shapes.backward_takes_lse(Cuda(dtype), head_dim)

    for dtype in (torch.bfloat16, torch.float16):
        assert takes(dtype, 64) and takes(dtype, 256) and takes(dtype, 128, (10, 0))
        assert not takes(dtype, 136, (8, 0)) and not takes(dtype, 100) and not takes(dtype, 264)
        assert not takes(dtype, 64, cudnn=shapes.LEAST_CUDNN - 1) and not takes(dtype, 64, cudnn=None)
    assert not takes(torch.float32, 64)
    source = pathlib.Path(__file__).parents[2] / "src/cuda/commands/attention.cpp"
    assert f"least_backward_version = {shapes.LEAST_CUDNN};" in source.read_text()


def choice_case():
    x, w = torch.randn(8, K), torch.randn(N, K)
    counts = overlapped.counts
    with host_ranks():
        for least, m, wanted in ((1, 8, True), (9, 8, False), (1, 65, False)):
            configure(min_m=least)
            before = counts["overlapped.gemm+allreduce"]
            overlapped.gemm_all_reduce(torch.randn(m, K), w, "0")
            assert (counts["overlapped.gemm+allreduce"] > before) == wanted
        # A larger max_m declares again.
        configure(min_m=1, max_m=128)
        close(*results("gemm_all_reduce", torch.randn(128, K), w, "0"))
        # float64 and no rows are not overlapped.
        for rows in (x.double(), x[:0]):
            assert overlapped.gemm_all_reduce(rows, w.to(rows.dtype), "0").shape == (len(rows), N)
    with host_ranks(capturing=True):
        with pytest.raises(errors.Unsupported, match="call shingle.torch.warmup first"):
            overlapped.gemm_all_reduce(x, w, "0")


def test_choice_depends_on_rows_and_table():
    on_ranks(1, choice_case)


def warmup_case():
    chunked = "chunked chunks=2"

    def measured(group, shape, sizes, device):
        slow, least = 20, 64 if shape.captured else 32
        return {m: {LIBRARY: 10, PREDICTED: 11, chunked: slow if m < least else 5} for m in sizes}

    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(warming, "measure", measured)
        patch.setattr(table, "rows", {})
        x, w = torch.randn(8, K), torch.randn(N, K)
        out = warming.warmup(lambda: overlapped.gemm_all_reduce(x, w, "0"))
        assert out.shape == (8, N)
        shape = Shape("gemm+allreduce", N, K, "f32", 1)
        assert table.rows[shape] == [(31, LIBRARY), (64, chunked)]
        assert table.rows[shape._replace(captured=True)] == [(63, LIBRARY), (64, chunked)]
        # Calls take the mechanism of their size, which warmup has declared.
        (made,) = contexts._contexts.values()
        own = shape._replace(mechanism=chunked)
        assert made.calls[own].mechanism(48) == "chunked"
        known = set(made.calls)
        close(*results("gemm_all_reduce", torch.randn(48, K), w, "0"))
        close(*results("gemm_all_reduce", x, w, "0"))
        assert set(made.calls) == known
        contexts.release(dist.group.WORLD)
        assert not contexts._contexts


def measure_case():
    """Every candidate is measured by the mechanism that it names."""
    seen = []

    def timed(group, kernel, args, choice, us=1.0):
        with warming.forced(choice):
            kernel(*args)
        seen.append(choice)
        return us

    def in_graph(*args):
        return timed(*args, us=2.0)

    def with_new_routings(group, kernel, args, choice, routed_us=warming.routed_us):
        seen.append(choice)
        return routed_us(group, kernel, args, choice)

    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(warming, "median_us", timed)
        patch.setattr(warming, "graph_us", in_graph)
        patch.setattr(warming, "routed_us", with_new_routings)
        patch.setattr(warming, "median_of", lambda group, launch, sleep_cycles: [launch(), launch()] and 1.0)
        patch.setattr(warming, "CANDIDATES", {"gemm+allreduce": ["fused", "chunked chunks=2"], "moe": ["chunked"]})
        patch.setattr(torch, "randn", lambda sizes, device, randn=torch.randn: randn(sizes))
        patch.setattr(torch, "tensor", lambda values, device, tensor=torch.tensor: tensor(values))
        group = overlapped.find_group("0")
        for shape in (
            Shape("gemm+allreduce", N, K, "f32", 1, bias=True), Shape("gemm+reducescatter", N, K, "f32", 1),
            Shape("allgather+gemm", N, K, "f32", 1), Shape("alltoall+gemm", N, K, "f32", 1),
            Shape("mlp", N, K, "f32", 1, inner=4, activation="swiglu"),
            Shape("attention+reducescatter", N, K, "f32", 1, attention=(2, 1, 4, True)),
            Shape("ulysses-attention", K, K, "f32", 1, attention=(2, 1, 4, True), transpose_b=False),
            Shape("allgather+attention", K, K, "f32", 1, attention=(2, 1, 4, True), zigzag=True, transpose_b=False),
            Shape("allgather+attention", K, K, "f32", 1, attention=(2, 1, 4, True), transpose_b=False,
                  returns_lse=True),
            Shape("attention-backward", K, K, "f32", 1, attention=(2, 1, 4, True), zigzag=True, transpose_b=False),
            Shape("moe", N, K, "f32", 1, inner=4, experts=(4, 2), activation="swiglu"),
            Shape("alltoall+grouped-gemm", 8, K, "f32", 1, experts=(4, 2), transpose_b=False),
            Shape("grouped-gemm+alltoall", N, K, "f32", 1, experts=(4, 2), transpose_b=False),
        ):  # fmt: skip
            found = warming.measure(group, shape, [16, 64], None)
            assert list(found) == [16, 64]
            assert found[64] == dict.fromkeys(seen[-len(found[64]) :], 1.0)
        keeping = Shape("allgather+gemm", N, K, "f32", 1, keeps=True, captured=True)
        assert set(warming.measure(group, keeping, [64], None)[64].values()) == {2.0}
    assert {"fused", "chunked chunks=2", LIBRARY, PREDICTED} <= set(seen)


def test_warmup_measures_each_candidate():
    on_ranks(1, measure_case)


def test_warmup_declares_and_measures():
    on_ranks(1, warmup_case)


def test_the_fastest_is_never_slower_than_the_libraries():
    times = {16: {LIBRARY: 5, "a": 9}, 32: {LIBRARY: 5, "a": 4, "b": 3}, 64: {LIBRARY: 5, "a": 3, "b": 3.5}}
    # From 17 to 31 rows "a" and "b" are not known to be faster at both ends.
    assert fastest(times) == [(31, LIBRARY), (63, "b"), (64, "a")]
    assert fastest({16: {LIBRARY: 5, "a": 4.95}}) == [(16, LIBRARY)], "within the noise"
    assert fastest({16: {LIBRARY: 5, "a": 4}, 32: {LIBRARY: 5, "a": 6}}) == [(16, "a"), (32, LIBRARY)]
    assert fastest({1: {LIBRARY: 5, "a": 4}, 2: {LIBRARY: 5, "b": 4}}) == [(1, "a"), (2, "b")], "nothing is between"


def test_choices_of_a_table(monkeypatch):
    shape = Shape("gemm+allreduce", N, K, "f32", 2, bias=True)
    choices = Table({shape.key: [(32, LIBRARY), (64, "ring slices=2")]})
    monkeypatch.setattr(settings, "max_m", 128)
    monkeypatch.setattr(settings, "min_m", 16)
    assert [choices.choose(shape, m) for m in (1, 32, 33, 64, 65)] == [
        LIBRARY, LIBRARY, "ring slices=2", "ring slices=2", LIBRARY,
    ]  # fmt: skip
    other = shape._replace(k=K + 1)
    assert [choices.choose(other, m) for m in (15, 16, 128, 129)] == [LIBRARY, PREDICTED, PREDICTED, LIBRARY]
    assert choices.mechanisms(shape) == [shape._replace(mechanism="ring slices=2")]
    assert choices.mechanisms(other) == [other]
    graphs = shape._replace(captured=True)
    assert choices.choose(graphs, 64) == "ring slices=2", "as long as graphs were not measured"
    choices.rows[graphs.key] = [(64, "fused")]
    assert (choices.choose(graphs, 64), choices.choose(shape, 64)) == ("fused", "ring slices=2")
    assert [of.mechanism for of in choices.mechanisms(shape)] == ["ring slices=2", "fused"]
    del choices.rows[graphs.key]
    rows = shape._replace(op="allgather+gemm", keeps=True)
    assert by(rows, PREDICTED).mechanism == "fused", "which keeps the order of rows"
    choices.rows[shape.key] = [(8, "fused"), (16, PREDICTED), (32, "fused"), (64, "chunked")]
    assert [of.mechanism for of in choices.mechanisms(shape)] == ["fused", None, "chunked"], "declared in this order"


def test_table_survives_a_file(tmp_path):
    path, full, read = tmp_path / "table.json", Table(), Table()
    full.rows[Shape("mlp", 1, 2, "bf16", 4, 8)] = [(64, LIBRARY), (128, PREDICTED)]
    full.rows[Shape("gemm+allreduce", 1, 2, "bf16", 4)] = [(16, "fused one-shot")]
    full.rows[Shape("ulysses-attention", 8, 8, "bf16", 2, attention=(2, 2, 4, True))] = [(16, LIBRARY)]
    full.rows[Shape("moe", 8, 8, "bf16", 2, 16, experts=(8, 2))] = [(16, "fused")]
    full.rows[Shape("allgather+attention", 8, 8, "bf16", 2, attention=(2, 2, 4, True), zigzag=True)] = [(16, "ring")]
    full.save(path)
    read.load(path)
    assert read == full
    path.write_text('{"version": 2, "shapes": [{"nose": 1}]}')
    with pytest.raises(errors.InvalidArgument, match="no table of choices"):
        read.load(path)
    with pytest.raises(errors.IoError, match="cannot read"):
        read.load(tmp_path / "nose")
