"""Ops with attention on CPU: results and gradients against attention of the whole sequence in float64."""

import itertools
from random import Random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from comparisons import DTYPES, RANKS, ROWS, K, N, close, leaf, own, random, sizes  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import attention, sequential, shapes  # noqa: E402
from shingle.torch.groups import find_group  # noqa: E402


def ulysses_case(m, dtype, causal, batch, heads_apiece=2, lengths=None):
    rank, ranks = sizes()

    def attend(q, k, v):
        return st.ulysses_attention(q, k, v, causal=causal, rows=m, cu_seqlens=packed(lengths))

    attention_case(attend, own, m, dtype, causal, batch, heads_apiece, ranks, lengths)


def ring_case(m, dtype, causal, zigzag, batch=None, heads_apiece=2, lengths=None, kv_heads=1):
    rank, ranks = sizes()

    def tokens(x):
        chunks = x.split((m + 2 * ranks - 1) // (2 * ranks))
        chunks = [*chunks, *[x[:0]] * (2 * ranks - len(chunks))]
        return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank])) if zigzag else own(x)

    def attend(q, k, v):
        return st.ring_attention(q, k, v, causal=causal, zigzag=zigzag, rows=m, cu_seqlens=packed(lengths))

    attention_case(attend, tokens, m, dtype, causal, batch, heads_apiece, kv_heads, lengths)


def ring_lse_case(m, dtype, causal, zigzag):
    """The log-sum-exp that attention-backward takes. On CPU none is kept, and gradients do not use one."""
    group = find_group(dist.group.WORLD.group_name)
    q, k, v, grad = (random(m, heads, K, dtype=dtype, grad=False) for heads in (4, 2, 2, 4))
    lengths = (m - m // 3, m // 3) if m > 2 else None
    scores = torch.einsum("ihd,jhd->ihj", q.double(), k.double().repeat_interleave(2, 1)) / K**0.5
    scores = scores.masked_fill(~seen(m, causal, lengths)[:, None], float("-inf"))
    places = sequential.token_order(m, group, zigzag, "cpu")
    mine = places // shapes.shard_rows(m, group, zigzag) == group.rank
    flat = [x[mine].flatten(1) for x in (q, k, v)]
    given = group.name, K, causal, zigzag, m, packed(lengths)
    out, lse = sequential.attend_with_lse(*flat, *given)
    close(lse, scores.logsumexp(-1)[mine], torch.promote_types(dtype, torch.float32), "log-sum-exp")
    kept_out, kept = torch.ops.shingle.ring_attention_with_lse(*flat, *given)
    torch.testing.assert_close([out, kept_out], [torch.ops.shingle.ring_attention(*flat, *given)] * 2)
    assert kept.shape == (0, 4) and kept.dtype == lse.dtype
    d_out = grad[mine].flatten(1)
    by_lse = torch.ops.shingle.ring_gradients(d_out, *flat, out, lse, *given)
    again = torch.ops.shingle.ring_gradients(d_out, *flat, None, None, *given)
    torch.testing.assert_close(by_lse, again)
    with pytest.raises(errors.InvalidArgument, match="lse is torch.float16"):
        torch.ops.shingle.ring_gradients(d_out, *flat, out, lse.half(), *given)


def attention_scatter_case(m, dtype, causal, heads_apiece=2, lengths=None):
    rank, ranks = sizes()
    q, w = random(m, ranks * heads_apiece, K), random(N, ranks * heads_apiece * K)
    k, v = (random(m, ranks, K) for _ in range(2))
    coefficients = torch.randn(m, N).double()
    whole = attended(q, k, v, causal, lengths).flatten(1) @ w.t()
    (whole * coefficients).sum().backward()

    def mine(x):
        return x.tensor_split(ranks, 1)[rank]

    leaves = [leaf(mine(x).to(dtype)) for x in (q, k, v, w)]
    out = st.attention_reduce_scatter(*leaves, causal=causal, cu_seqlens=packed(lengths))
    close(out, own(whole), dtype, "result")
    (out * own(coefficients).to(dtype)).sum().backward()
    gradients_match(leaves, (q, k, v, w), mine, dtype)


def packed(lengths):
    """The cu_seqlens of sequences of these lengths."""
    return None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def seen(m, causal, lengths):
    """True where the query of a row sees the key of a column."""
    lengths = torch.tensor(lengths or (m,))
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    same = sequence[:, None] == sequence
    return same.tril() if causal else same


def attended(q, k, v, causal, lengths=None):
    """attention(q, k, v) of [tokens, …, heads, head_dim]."""
    shared = q.shape[-2] // k.shape[-2]
    of_heads = [x.flatten(1, -2).transpose(0, 1) for x in (q, k, v)]  # [batch · heads, tokens, head_dim]
    scores = of_heads[0] @ of_heads[1].repeat_interleave(shared, 0).transpose(1, 2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~seen(len(q), causal, lengths), float("-inf"))
    return (scores.softmax(2) @ of_heads[2].repeat_interleave(shared, 0)).transpose(0, 1).reshape(q.shape)


def attention_case(attend, own, m, dtype, causal, batch, heads_apiece, kv_heads, lengths=None):
    """own: this rank's tokens of a tensor."""
    middle = [batch] if batch else []
    q = random(m, *middle, heads_apiece * kv_heads, K)
    k, v = (random(m, *middle, kv_heads, K) for _ in range(2))
    coefficients = torch.randn(q.shape).double()
    whole = attended(q, k, v, causal, lengths)
    (whole * coefficients).sum().backward()
    leaves = [leaf(own(x).to(dtype)) for x in (q, k, v)]
    out = attend(*leaves)
    close(out, own(whole), dtype, "result")
    (out * own(coefficients).to(dtype)).sum().backward()
    gradients_match(leaves, (q, k, v), own, dtype)


def gradients_match(leaves, whole, own, dtype):
    """Errors are relative to all ranks' gradients, and at least 1: tokens that are alone have none of q and k."""
    for name, got, x in zip("qkvw", leaves, whole):
        close(got.grad, own(x.grad), dtype, f"gradient of {name}", scale=max(x.grad.norm(), 1))


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


LENGTHS = {12: (5, 1, 6), 7: (1, 6), 1: (1,)}


@RANKS
@ROWS
def test_packed_sequences(ranks, m):
    lengths = LENGTHS[m]
    for dtype in DTYPES:
        on_ranks(ranks, ring_case, m, dtype, True, True, None, 2, lengths)
    on_ranks(ranks, ring_case, m, torch.float64, False, False, 2, 1, lengths)
    on_ranks(ranks, ulysses_case, m, torch.float64, True, None, 2, lengths)
    on_ranks(ranks, attention_scatter_case, m, torch.float64, True, 2, lengths)


def small_masks_case():
    """Attention that is cut into blocks of queries because of the size of masks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "MASK_ELEMENTS", 20)
        made = attention.parts_of([(6, 12)], 12, True)
        assert [(part.queries, part.keys) for part in made] == [(1, 7), (1, 8), (1, 9), (1, 10), (1, 11), (1, 12)]
        patch.setattr(attention, "MASK_ELEMENTS", 40)
        made = attention.parts_of([(0, 4), (6, 12)], 12, True)
        assert [(part.row, part.queries, part.keys) for part in made] == [(0, 4, 4), (4, 3, 9), (7, 3, 12)]
        for lengths in (None, (5, 1, 6)):
            ring_case(12, torch.float64, True, True, lengths=lengths)
            ring_case(12, torch.float64, True, False, lengths=lengths)
            ring_lse_case(12, torch.float64, True, True)


def test_masks_are_bounded():
    on_ranks(2, small_masks_case)


def test_parts_of_packed_sequences():
    def parts(queries, tokens, causal, lengths):
        return [tuple(part) for part in attention.parts_of(queries, tokens, causal, lengths)]

    whole = [(0, 12)]
    assert parts(whole, 12, False, None) == [(0, 0, 12, 12, False, 1)]
    assert parts(whole, 12, True, (4, 4, 4)) == [(0, 0, 4, 4, True, 3)], "one call for sequences of one length"
    assert parts(whole, 12, True, (4, 4, 1, 3)) == [(0, 0, 4, 4, True, 2), (8, 8, 1, 1, False, 1), (9, 9, 3, 3, True, 1)]
    assert parts([(0, 3), (9, 12)], 12, False, None) == [(0, 0, 6, 12, False, 1)], "two chunks see the same keys"
    assert parts([(3, 6), (6, 9)], 12, True, (5, 7)) == [(0, 0, 2, 5, True, 1), (2, 5, 1, 1, False, 1),
                                                       (3, 5, 3, 4, True, 1)]  # fmt: skip
    assert parts([(0, 2), (6, 8)], 8, True, (2, 4, 2)) == [(0, 0, 2, 2, True, 1), (2, 6, 2, 2, True, 1)], "not adjacent"
    assert parts([], 12, True, None) == []


def random_problem(draw):
    """A case and its arguments: heads, sizes, masks, orders, lengths and dtypes."""
    lengths = tuple(draw.randint(1, 12) for _ in range(draw.randint(1, 6)))
    m, dtype, causal = sum(lengths), draw.choice([*DTYPES, torch.float64, torch.float64]), draw.random() < 0.6
    lengths = draw.choice([lengths, lengths, None])
    batch, heads_apiece = draw.choice([None, 1, 2]), draw.randint(1, 3)
    kind = draw.choice(["ring", "ring", "ulysses", "scatter"])
    if kind == "scatter":
        return attention_scatter_case, (m, dtype, causal, heads_apiece, lengths)
    if kind == "ulysses":
        return ulysses_case, (m, dtype, causal, batch, heads_apiece, lengths)
    return ring_case, (m, dtype, causal, draw.random() < 0.5, batch, heads_apiece, lengths, draw.randint(1, 3))


def random_case(problems):
    draw = Random(dist.get_world_size())
    for number in range(problems):
        case, given = random_problem(draw)
        try:
            case(*given)
        except AssertionError as error:
            raise AssertionError(f"problem {number}, {case.__name__}{given}: {error}") from error


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_random_problems(ranks):
    on_ranks(ranks, random_case, 60)
