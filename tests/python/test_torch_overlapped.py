"""The CUDA kernels of ops with products, without a GPU; their choices, contexts, and warmup."""

import dataclasses
import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from host_contexts import K, N, close, host_ranks, results  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle.torch import configure, contexts, overlapped, warming  # noqa: E402
from shingle.torch.choices import LIBRARY, PREDICTED, Shape, Table, by, fastest, table  # noqa: E402
from shingle.torch.groups import find_group  # noqa: E402
from shingle.torch.settings import settings  # noqa: E402


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
                norm = random(5, N), random(N)
                close(*results("gemm_all_reduce_norm", x, w, *norm, "0", random(N), 1e-3))
                close(*results("gemm_all_reduce_norm", x, w, *norm, "0", None, 1e-5))
                close(*results("gemm_all_reduce_norm", x / 1e3, w, norm[0] / 1e3, norm[1], "0", None, 0.0))
                for activation in ("relu", "gelu", "silu", "swiglu", None):
                    close(*results("gemm_reduce_scatter", x, w, "0", random(N), activation))
                    inner = random(N, 4 if activation == "swiglu" else 8)
                    close(*results("mlp", x, up, inner, "0", activation))
                close(*results("mlp", x, up, down.t().contiguous().t(), "0", "swiglu"))
        assert overlapped.counts["overlapped.mlp"] > 0 and not overlapped.counts["sequential.mlp"]


def test_kernels_pass_what_the_context_expects():
    on_ranks(1, kernels_case)


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
        candidates = {"gemm+allreduce": ["fused", "chunked chunks=2"], "moe": ["chunked"]}
        for op in ("moe-tp", "moe+allreduce"):
            candidates[op] = warming.CANDIDATES[op]
        patch.setattr(warming, "CANDIDATES", candidates)
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
            Shape("moe-tp", N, K, "f32", 1, inner=4, experts=(4, 2), activation="swiglu"),
            Shape("allgather+grouped-gemm", 8, K, "f32", 1, experts=(4, 2), transpose_b=False),
            Shape("grouped-gemm+reducescatter", N, K, "f32", 1, experts=(4, 2), transpose_b=False),
            Shape("moe", N, K, "f32", 1, inner=4, experts=(4, 2), capacity=20, activation="swiglu"),
            Shape("alltoall+grouped-gemm", 8, K, "f32", 1, experts=(4, 2), capacity=20, transpose_b=False),
            Shape("grouped-gemm+alltoall", N, K, "f32", 1, experts=(4, 2), capacity=20, transpose_b=False),
            Shape("moe-tp", N, K, "f32", 1, inner=4, experts=(4, 2), capacity=20, activation="swiglu"),
            Shape("allgather+grouped-gemm", 8, K, "f32", 1, experts=(4, 2), capacity=20, transpose_b=False),
            Shape("grouped-gemm+reducescatter", N, K, "f32", 1, experts=(4, 2), capacity=20, transpose_b=False),
            Shape("moe+allreduce", N, K, "f32", 1, inner=4, experts=(4, 2), capacity=20, activation="swiglu"),
            Shape("grouped-gemm+allreduce", N, K, "f32", 1, experts=(4, 2), capacity=20, transpose_b=False),
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
    normed = shape._replace(normed=True, norm_epsilon=1e-5)
    assert choices.choose(normed, 64) == "ring slices=2", "as without the norm, until it is measured"
    assert choices.choose(normed._replace(captured=True), 64) == "fused"
    choices.rows[normed.key] = [(64, "fused one-shot")]
    assert choices.choose(normed._replace(norm_epsilon=1e-6, captured=True), 64) == "fused one-shot"
    beside = shape._replace(gathers=8)
    assert choices.choose(beside, 64) == "ring slices=2", "as without a gather beside it, until it is measured"
    choices.enter(beside, [(128, "fused helpers=4")])
    assert choices.choose(beside, 64) == "fused helpers=4"
    assert choices.choose(shape, 64) == "ring slices=2"
    del choices.rows[graphs.key], choices.rows[normed.key]
    rows = shape._replace(op="allgather+gemm", keeps=True)
    assert by(rows, PREDICTED).mechanism == "fused", "which keeps the order of rows"
    choices.rows[shape.key] = [(8, "fused"), (16, PREDICTED), (32, "fused"), (64, "chunked")]
    assert [of.mechanism for of in choices.mechanisms(shape)] == ["fused", None, "chunked"], "declared in this order"


def test_exchanges_of_long_sequences_are_overlapped_only_if_that_was_measured(monkeypatch):
    monkeypatch.setattr(settings, "max_m", 1 << 17)
    shape, choices = Shape("ulysses-attention", N, K, "bf16", 2, attention=(4, 2, 64, True)), Table()
    assert [choices.choose(shape, m) for m in (96 << 10, (96 << 10) + 1, (1 << 17) + 1)] == [
        PREDICTED, "sequential", LIBRARY,
    ]  # fmt: skip
    assert [of.mechanism for of in choices.mechanisms(shape)] == ["ring engines=1 slices=2", "sequential"]
    choices.enter(shape, [(1 << 17, "ring engines=1 slices=8")])
    assert choices.choose(shape, 1 << 17) == "ring engines=1 slices=8"


def grows_case():
    group, gather = find_group("0"), Shape("allgather", K, K, "f32", 1, gathers=K, mechanism="sequential")
    find = functools.partial(contexts.find_context, group, None, contexts.INPUTS)
    with host_ranks(capturing=True), pytest.raises(errors.Unsupported, match="first time in a CUDA graph"):
        find()
    with host_ranks():
        contexts.reserve(group, None, 512, contexts.INPUTS)
        contexts.find_call(group, gather, 8, None)
        small = find()
        contexts.reserve(group, None, 1024, contexts.INPUTS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            assert find() is small, "nothing is made under capture"
        large = find()
        assert (small.registered_bytes, large.registered_bytes) == (512, 1024) and large.calls[gather].max_m == 64
        with contexts.graphs_that_end():
            large.in_graphs = True
        assert not large.in_graphs
        large.in_graphs = True
        contexts.reserve(group, None, 2048, contexts.INPUTS)
        assert find() is large, "a graph holds its memory"


def test_registered_memory_of_inputs_grows():
    on_ranks(1, grows_case)


def test_table_survives_a_file(tmp_path):
    path, full, read = tmp_path / "table.json", Table(), Table()
    full.rows[Shape("mlp", 1, 2, "bf16", 4, 8)] = [(64, LIBRARY), (128, PREDICTED)]
    full.rows[Shape("gemm+allreduce", 1, 2, "bf16", 4)] = [(16, "fused one-shot")]
    full.rows[Shape("gemm+allreduce", 1, 2, "bf16", 4, normed=True)] = [(16, "fused")]
    full.rows[Shape("ulysses-attention", 8, 8, "bf16", 2, attention=(2, 2, 4, True))] = [(16, LIBRARY)]
    full.rows[Shape("moe", 8, 8, "bf16", 2, 16, experts=(8, 2))] = [(16, "fused")]
    full.rows[Shape("moe", 8, 8, "bf16", 2, 16, experts=(8, 2), capacity=4)] = [(16, "sequential")]
    ring = Shape("allgather+attention", 8, 8, "bf16", 2, attention=(2, 2, 4, True), zigzag=True)
    full.rows[ring], full.rows[ring._replace(returns_lse=True)] = [(16, "ring")], [(16, LIBRARY)]
    full.save(path)
    read.load(path)
    assert read == full
    path.write_text('{"version": 2, "shapes": [{"nose": 1}]}')
    with pytest.raises(errors.InvalidArgument, match="no table of choices"):
        read.load(path)
    assert read == full, "a table that cannot be read adds nothing"
    with pytest.raises(errors.IoError, match="nose"):
        read.load(tmp_path / "nose")
    with pytest.raises(errors.IoError):
        full.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["table.json"] and not list(tmp_path.parent.glob("*.[0-9]*"))


@pytest.mark.parametrize("wrong", [{"max_m": 0}, {"max_m": "8K"}, {"min_m": 1.5}, {"workers": -1}, {"timeout_us": -1.0}])
def test_settings_are_checked(wrong):
    before = dataclasses.replace(settings)
    with pytest.raises(errors.InvalidArgument, match="number from"):
        configure(**wrong)
    assert settings == before
