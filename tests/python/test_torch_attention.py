"""Ops with attention on CPU: results and gradients against attention of the whole sequence in float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from comparisons import DTYPES, RANKS, ROWS, TOLERANCE, K, N, close, leaf, own, random, sizes  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import sequential, shapes  # noqa: E402
from shingle.torch.groups import find_group  # noqa: E402


def ulysses_case(m, dtype, causal, batch, heads_apiece=2):
    rank, ranks = sizes()

    def attend(q, k, v):
        return st.ulysses_attention(q, k, v, causal=causal, rows=m)

    attention_case(attend, own, m, dtype, causal, batch, heads_apiece, ranks)


def ring_case(m, dtype, causal, zigzag, batch=None, heads_apiece=2):
    rank, ranks = sizes()

    def tokens(x):
        chunks = x.split((m + 2 * ranks - 1) // (2 * ranks))
        chunks = [*chunks, *[x[:0]] * (2 * ranks - len(chunks))]
        return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank])) if zigzag else own(x)

    def attend(q, k, v):
        return st.ring_attention(q, k, v, causal=causal, zigzag=zigzag, rows=m)

    attention_case(attend, tokens, m, dtype, causal, batch, heads_apiece, 1)


def ring_lse_case(m, dtype, causal, zigzag):
    """The log-sum-exp that forward keeps. On CPU the gradients do not use it."""
    group = find_group(dist.group.WORLD.group_name)
    q, k, v, grad = (random(m, heads, K, dtype=dtype, grad=False) for heads in (4, 2, 2, 4))
    scores = torch.einsum("ihd,jhd->ihj", q.double(), k.double().repeat_interleave(2, 1)) / K**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(m, m, dtype=bool).triu(1)[:, None], float("-inf"))
    places = sequential.token_order(m, group, zigzag, "cpu")
    mine = places // shapes.shard_rows(m, group, zigzag) == group.rank
    flat = [x[mine].flatten(1) for x in (q, k, v)]
    given = dist.group.WORLD.group_name, K, causal, zigzag, m
    out, lse = torch.ops.shingle.ring_attention_with_lse(*flat, *given)
    close(lse, scores.logsumexp(-1)[mine], torch.promote_types(dtype, torch.float32), "log-sum-exp")
    torch.testing.assert_close(out, torch.ops.shingle.ring_attention(*flat, *given))
    d_out = grad[mine].flatten(1)
    kept = torch.ops.shingle.ring_gradients(d_out, *flat, out, lse, *given)
    again = torch.ops.shingle.ring_gradients(d_out, *flat, None, None, *given)
    torch.testing.assert_close(kept, again)
    with pytest.raises(errors.InvalidArgument, match="lse is torch.float16"):
        torch.ops.shingle.ring_gradients(d_out, *flat, out, lse.half(), *given)


def attention_scatter_case(m, dtype, causal, heads_apiece=2):
    rank, ranks = sizes()
    q, w = random(m, ranks * heads_apiece, K), random(N, ranks * heads_apiece * K)
    k, v = (random(m, ranks, K) for _ in range(2))
    coefficients = torch.randn(m, N).double()
    whole = attended(q, k, v, causal).flatten(1) @ w.t()
    (whole * coefficients).sum().backward()

    def mine(x):
        return x.tensor_split(ranks, 1)[rank]

    leaves = [leaf(mine(x).to(dtype)) for x in (q, k, v, w)]
    out = st.attention_reduce_scatter(*leaves, causal=causal)
    close(out, own(whole), dtype, "result")
    (out * own(coefficients).to(dtype)).sum().backward()
    for name, got, x in zip("qkvw", leaves, (q, k, v, w)):
        if m == 1 and name in "qk":
            assert got.grad.abs().max() <= TOLERANCE[dtype]
            continue
        close(got.grad, mine(x.grad), dtype, f"gradient of {name}")


def attended(q, k, v, causal):
    """attention(q, k, v) of [tokens, …, heads, head_dim]."""
    shared = q.shape[-2] // k.shape[-2]
    of_heads = [x.flatten(1, -2).transpose(0, 1) for x in (q, k, v)]  # [batch · heads, tokens, head_dim]
    scores = of_heads[0] @ of_heads[1].repeat_interleave(shared, 0).transpose(1, 2) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(len(q), len(q), dtype=bool).triu(1), float("-inf"))
    return (scores.softmax(2) @ of_heads[2].repeat_interleave(shared, 0)).transpose(0, 1).reshape(q.shape)


def attention_case(attend, own, m, dtype, causal, batch, heads_apiece, kv_heads):
    """own: this rank's tokens of a tensor."""
    middle = [batch] if batch else []
    q = random(m, *middle, heads_apiece * kv_heads, K)
    k, v = (random(m, *middle, kv_heads, K) for _ in range(2))
    coefficients = torch.randn(q.shape).double()
    whole = attended(q, k, v, causal)
    (whole * coefficients).sum().backward()
    leaves = [leaf(own(x).to(dtype)) for x in (q, k, v)]
    out = attend(*leaves)
    close(out, own(whole), dtype, "result")
    (out * own(coefficients).to(dtype)).sum().backward()
    for name, got, x in zip("qkv", leaves, (q, k, v)):
        if m == 1 and name != "v":  # the weight of the only token is 1, whatever q and k
            assert got.grad.numel() == 0 or got.grad.abs().max() <= TOLERANCE[dtype]
            continue
        close(got.grad, own(x.grad), dtype, f"gradient of {name}")


@RANKS
@ROWS
def test_attention_reduce_scatter(ranks, m):
    for dtype in DTYPES:
        on_ranks(ranks, attention_scatter_case, m, dtype, True)
    on_ranks(ranks, attention_scatter_case, m, torch.float64, False, 1)


@RANKS
@ROWS
def test_ulysses_attention(ranks, m):
    for dtype in DTYPES:
        on_ranks(ranks, ulysses_case, m, dtype, True, None)
    on_ranks(ranks, ulysses_case, m, torch.float64, False, 2)
    on_ranks(ranks, ulysses_case, m, torch.float64, True, 3, 1)


@RANKS
@ROWS
def test_ring_attention(ranks, m):
    for dtype in DTYPES:
        on_ranks(ranks, ring_case, m, dtype, True, True)
    on_ranks(ranks, ring_case, m, torch.float64, True, False)
    on_ranks(ranks, ring_case, m, torch.float64, False, True, 2)
    on_ranks(ranks, ring_case, m, torch.float64, True, False, 3, 1)


@RANKS
@ROWS
def test_log_sum_exp_of_ring_attention(ranks, m):
    for dtype in DTYPES:
        for causal in (False, True):
            for zigzag in (False, True):
                on_ranks(ranks, ring_lse_case, m, dtype, causal, zigzag)
