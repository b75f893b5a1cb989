"""The ops in the rest of PyTorch: opcheck, torch.compile, autocast, checkpointing."""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import torch as st  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

K, N = 8, 6


def arguments(name, requires_grad):
    """Arguments of an op, on every rank alike in shape."""
    ranks = dist.get_world_size()

    def tensor(*shape):
        return torch.randn(shape, requires_grad=requires_grad)

    x, w, group = tensor(4, K), tensor(N, K), dist.group.WORLD.group_name
    splits = [4 // ranks] * ranks**2
    return {
        "gemm_reduce_scatter": (x, w, group, tensor(N)),
        "gemm_all_reduce": (x, w, group, tensor(N)),
        "gemm_all_reduce_norm": (x, w, tensor(4, N), tensor(N), group, tensor(N)),
        "all_gather_gemm": (x, [w, tensor(N, K)], group, None, True),
        "all_to_all_gemm": (x, w, group, splits),
        "gemm_all_to_all": (x, w, group, splits),
        "attention_reduce_scatter": (tensor(4, 4 * K), tensor(4, 2 * K), tensor(4, 2 * K), tensor(N, 4 * K), group, K,
                                     True),
        "ulysses_attention": (tensor(4, 4 * K), tensor(4, 2 * K), tensor(4, 2 * K), group, K, True),
        "ring_attention": (tensor(4, 2 * K), tensor(4, K), tensor(4, K), group, K, True, True),
        "ring_attention_with_lse": (tensor(4, 2 * K), tensor(4, K), tensor(4, K), group, K, True, True),
        "attention_reduce_scatter, packed": (tensor(4, 2 * K), tensor(4, K), tensor(4, K), tensor(N, 2 * K), group, K,
                                             True, torch.tensor([0, 1, 4])),
        "ulysses_attention, packed": (tensor(4, 2 * K), tensor(4, 2 * K), tensor(4, 2 * K), group, K, True, None,
                                      torch.tensor([0, 3, 8])),
        "ring_attention, packed": (tensor(4, K), tensor(4, K), tensor(4, K), group, K, True, True, None,
                                   torch.tensor([0, 3, 8])),
        "ring_attention_with_lse, packed": (tensor(4, K), tensor(4, K), tensor(4, K), group, K, True, True, None,
                                            torch.tensor([0, 3, 8])),
        "mlp": (x, tensor(2 * N, K), tensor(K, N), group, "swiglu"),
        "replicated_gemm": (x, w, group),
        "moe": (x, tensor(4, 2 * N, K), tensor(4, K, N), torch.randint(4 * ranks, (4, 2)), tensor(4, 2), group,
                "swiglu", False),
        "moe, slices": (x, tensor(4, 2 * N, K), tensor(4, K, N), torch.randint(4, (4, 2)), tensor(4, 2), group,
                        "swiglu", True),
        "moe_gradients": (torch.randn(4, K), x.detach(), torch.randn(4, 2 * N, K), torch.randn(4, N, K).transpose(1, 2),
                          torch.rand(4, 2), torch.tensor([[8, 0, 1, 2, 3, 4, 5, 6, 7]] * ranks, dtype=torch.int32),
                          group, "swiglu", False, [True, True, True, False]),
        "moe_gradients, slices": (torch.randn(4, K), x.detach(), torch.randn(4, 2 * N, K), torch.randn(4, K, N),
                                  torch.rand(4, 2), torch.tensor([[8, *[0, 1, 2, 3] * 2]] * ranks, dtype=torch.int32),
                                  group, "swiglu", True, [True, True, False, True]),
        "moe_with_capacity": (x, tensor(4, 2 * N, K), tensor(4, K, N), torch.randint(4 * ranks, (4, 2)), tensor(4, 2),
                              group, "swiglu", 2, None),
        "moe_with_capacity, slices": (x, tensor(4, 2 * N, K), tensor(4, K, N), torch.randint(4, (4, 2)), tensor(4, 2),
                                      group, "swiglu", 2, None, True),
        "moe_with_capacity, replicated": (x, tensor(4, 2 * N, K), tensor(4, K, N), torch.randint(4, (4, 2)),
                                          tensor(4, 2), group, "swiglu", 2, None, True, True),
        "moe_with_capacity_gradients": (torch.randn(4, K), x.detach(), torch.randn(4, 2 * N, K),
                                        torch.randn(4, N, K).transpose(1, 2), torch.randint(4 * ranks, (4, 2)),
                                        torch.rand(4, 2), group, "swiglu", 2, 5, False, False,
                                        [True, True, True, False]),
        "moe_with_capacity_gradients, slices": (torch.randn(4, K), x.detach(), torch.randn(4, 2 * N, K),
                                                torch.randn(4, K, N), torch.randint(4, (4, 2)), torch.rand(4, 2),
                                                group, "swiglu", 2, 5, True, False, [True, True, False, True]),
        "moe_with_capacity_gradients, replicated": (torch.randn(4, K), x.detach(), torch.randn(4, 2 * N, K),
                                                    torch.randn(4, K, N), torch.randint(4, (4, 2)), torch.rand(4, 2),
                                                    group, "swiglu", 2, 5, True, True, [True, True, False, True]),
        "scatter_gradients": ([torch.randn(4, N), torch.randn(4, N)], torch.randn(4 // ranks, K),
                              [torch.randn(N, K), torch.randn(K, N).t()], group),
        "all_gather": (tensor(4, K).detach(), group, None),
        "reduce_scatter": (tensor(4, K).detach(), group),
        "all_to_all": (tensor(4, K).detach(), group, splits),
    }[name]  # fmt: skip


def opcheck_case(name, requires_grad):
    torch.library.opcheck(getattr(torch.ops.shingle, name.split(",")[0]).default, arguments(name, requires_grad))


@pytest.mark.parametrize(
    "name",
    ["gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm", "all_gather_gemm", "all_to_all_gemm",
     "gemm_all_to_all", "replicated_gemm", "mlp", "attention_reduce_scatter", "ulysses_attention", "ring_attention",
     "ring_attention_with_lse", "attention_reduce_scatter, packed", "ulysses_attention, packed",
     "ring_attention, packed", "ring_attention_with_lse, packed", "moe", "moe, slices", "moe_gradients",
     "moe_gradients, slices", "moe_with_capacity", "moe_with_capacity_gradients",
     "moe_with_capacity, slices", "moe_with_capacity_gradients, slices", "moe_with_capacity, replicated",
     "moe_with_capacity_gradients, replicated", "scatter_gradients",
     "all_gather", "reduce_scatter",
     "all_to_all"],
)  # fmt: skip
def test_opcheck(name):
    on_ranks(2, opcheck_case, name, False)
    on_ranks(2, opcheck_case, name, True)


def cached_case(folder):
    """Code that one rank compiled does not serve another, whose rows are fewer."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    torch._inductor.config.force_disable_caches = False
    x, w = torch.randn(5, K), torch.randn(N, K)

    def function(x, w):
        return torch.relu(st.gemm_reduce_scatter(x, w) * 2) + 1

    for _ in range(2):  # the second time from the cache
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(function, dynamic=False)(x, w), function(x, w))


def test_ranks_share_a_compile_cache(tmp_path):
    on_ranks(2, cached_case, str(tmp_path))


def layer(x, norm, up, down, residual):
    """Sequence-parallel, then all-reduced: each op once."""
    (hidden,) = st.all_gather_gemm(x, [up])
    rows = st.gemm_reduce_scatter(torch.relu(hidden), down)
    return st.gemm_all_reduce(rows, up[:K].t()[:, :K].contiguous(), residual=residual, norm_weight=norm)


def compile_case(backend):
    ranks, compiled = dist.get_world_size(), torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    graphs = torch._dynamo.utils.counters["stats"]
    for rows in (4, 6, 10):
        inputs = [torch.randn(rows, K), torch.randn(K), torch.randn(N * ranks, K), torch.randn(K, N * ranks),
                  torch.randn(rows, K)]  # fmt: skip
        got, expected = [t.clone().requires_grad_() for t in inputs], [t.clone().requires_grad_() for t in inputs]
        outs = []
        for function, at in ((compiled, got), (layer, expected)):
            outs.append(function(*at))
            (outs[-1][0].square().sum() + outs[-1][1].sum()).backward()
        torch.testing.assert_close(outs[0], outs[1])
        for g, e in zip(got, expected):
            torch.testing.assert_close(g.grad, e.grad)
        if rows == 4:
            first = graphs["unique_graphs"]
    assert graphs["unique_graphs"] == first, "another number of rows compiled another graph"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_fullgraph_with_dynamic_rows(backend):
    on_ranks(2, compile_case, backend)


def compile_attention_case(backend):
    def function(q, k, v):
        return st.ring_attention(q, k, v, causal=True, zigzag=True).square()

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for rows in (4, 6, 10):
        inputs = [torch.randn(rows, heads, K) for heads in (4, 2, 2)]
        leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
        outs = [at(*of) for at, of in zip((compiled, function), leaves)]
        for out in outs:
            out.sum().backward()
        torch.testing.assert_close(*outs)
        for got, expected in zip(*leaves):
            torch.testing.assert_close(got.grad, expected.grad)
        torch.testing.assert_close(compiled(*inputs), function(*inputs))  # no gradient is wanted


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_ring_attention(ranks, backend):
    on_ranks(ranks, compile_attention_case, backend)


def compile_packed_case(backend):
    """Other lengths, and another number of sequences, need no other code."""

    def function(q, k, v, w, cu_seqlens):
        ring = st.ring_attention(q, k, v, causal=True, cu_seqlens=cu_seqlens)
        ulysses = st.ulysses_attention(ring, k, v, causal=True, cu_seqlens=cu_seqlens)
        return st.attention_reduce_scatter(ulysses, k, v, w, causal=True, cu_seqlens=cu_seqlens // 2)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    graphs = torch._dynamo.utils.counters["stats"]
    for ends in ([0, 4, 10, 16], [0, 2, 16, 16], [0, 8, 16], [0, 2, 4, 6, 8, 16]):
        inputs = [torch.randn(8, heads, K) for heads in (4, 2, 2)] + [torch.randn(N, 4 * K)]
        leaves = [[x.clone().requires_grad_() for x in inputs] for _ in range(2)]
        outs = [at(*of, torch.tensor(ends)) for at, of in zip((compiled, function), leaves)]
        for out in outs:
            out.square().sum().backward()
        torch.testing.assert_close(*outs)
        for got, expected in zip(*leaves):
            torch.testing.assert_close(got.grad, expected.grad)
        if len(ends) == 3:
            known = graphs["unique_graphs"]
    assert graphs["unique_graphs"] == known, "other lengths compiled another graph"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_packed_sequences(backend):
    on_ranks(2, compile_packed_case, backend)


def autocast_attention_case():
    """Also backward within autocast: the log-sum-exp stays fp32."""
    leaves = [torch.randn(4, heads, K, requires_grad=True) for heads in (4, 2, 2)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = st.ring_attention(*leaves)
        assert out.dtype == torch.bfloat16
        out.float().sum().backward()
    assert all(leaf.grad.dtype == torch.float32 and leaf.grad.isfinite().all() for leaf in leaves)


def test_autocast_of_ring_attention():
    on_ranks(2, autocast_attention_case)


def autocast_case(compiled):
    def run(x, w, x_shard):
        return st.gemm_reduce_scatter(x, w, bias=bias), st.all_gather_gemm(x_shard, [w])[0]

    x, w, bias = torch.randn(4, K, requires_grad=True), torch.randn(N, K, requires_grad=True), torch.randn(N)
    function = torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs = function(x, w, x)
    assert [out.dtype for out in outs] == [torch.bfloat16] * 2
    sum(out.float().sum() for out in outs).backward()
    assert x.grad.dtype == w.grad.dtype == torch.float32
    torch.testing.assert_close(outs[1].float(), run(x, w, x)[1], atol=0.1, rtol=0.1)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_to_its_dtype(compiled):
    on_ranks(2, autocast_case, compiled)


def checkpoint_case():
    inputs = [torch.randn(4, K), torch.randn(K), torch.randn(2 * N, K), torch.randn(K, 2 * N), torch.randn(4, K)]
    gradients = []
    for run in (layer, lambda *at: checkpoint(layer, *at, use_reentrant=False)):
        at = [t.clone().requires_grad_() for t in inputs]
        run(*at)[0].square().sum().backward()
        gradients.append([t.grad for t in at])
    torch.testing.assert_close(*gradients)


def test_checkpointing_gives_the_same_gradients():
    on_ranks(2, checkpoint_case)
