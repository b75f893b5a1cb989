"""Ops on CPU: results against mm + c10d on whole matrices, gradients against an unsharded reference in float64."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import sequential, shapes  # noqa: E402
from shingle.torch.groups import find_group  # noqa: E402

K, N, INNER = 8, 6, 10
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def sizes():
    return dist.get_rank(), dist.get_world_size()


def random(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


def own(whole):
    """This rank's rows of a matrix."""
    rank, ranks = sizes()
    shard = -(-whole.shape[0] // ranks)
    return whole[rank * shard : (rank + 1) * shard]


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def close(got, expected, dtype, what):
    assert got is not None, f"{what} is missing"
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    assert got.dtype == dtype, (what, got.dtype)
    error = (got.double() - expected.double()).norm() / max(expected.double().norm(), 1e-30)
    assert expected.numel() == 0 or error <= TOLERANCE[dtype], f"{what} is off by {error}"


def gradients_match(inputs, dtype):
    """Compares gradients of leaves with those of the reference. inputs: {name: (leaf, reference leaf)}."""
    for name, (got, expected) in inputs.items():
        close(got.grad, expected.grad, dtype, f"gradient of {name}")


def scatter_case(m, dtype, with_bias):
    rank, ranks = sizes()
    xs = [random(m, K) for _ in range(ranks)]
    ws = [random(N, K) for _ in range(ranks)]
    bias, coefficients = random(N) if with_bias else None, torch.randn(m, N).double()
    whole = sum(x @ w.t() for x, w in zip(xs, ws)) + (bias if with_bias else 0)
    (whole * coefficients).sum().backward()
    x, w = leaf(xs[rank].to(dtype)), leaf(ws[rank].to(dtype))
    b = leaf(bias.to(dtype)) if with_bias else None
    out = st.gemm_reduce_scatter(x, w, bias=b)
    close(out, own(whole), dtype, "result")
    (out * own(coefficients).to(dtype)).sum().backward()
    gradients_match({"x": (x, xs[rank]), "w": (w, ws[rank])} | ({"bias": (b, bias)} if with_bias else {}), dtype)


def reduce_case(m, dtype, with_bias):
    rank, ranks = sizes()
    xs = [random(m, K) for _ in range(ranks)]
    ws = [random(N, K) for _ in range(ranks)]
    bias, coefficients = random(N) if with_bias else None, torch.randn(m, N).double()
    whole = sum(x @ w.t() for x, w in zip(xs, ws)) + (bias if with_bias else 0)
    (whole * coefficients).sum().backward()
    x, w = leaf(xs[rank].to(dtype)), leaf(ws[rank].to(dtype))
    b = leaf(bias.to(dtype)) if with_bias else None
    out = st.gemm_all_reduce(x, w, bias=b)
    close(out, whole, dtype, "result")
    (out * coefficients.to(dtype)).sum().backward()
    gradients_match({"x": (x, xs[rank]), "w": (w, ws[rank])} | ({"bias": (b, bias)} if with_bias else {}), dtype)


def norm_case(m, dtype, with_residual):
    rank, ranks = sizes()
    xs = [random(m, K) for _ in range(ranks)]
    ws = [random(N, K) for _ in range(ranks)]
    residual, weight, bias = random(m, N), random(N), random(N)
    of_norm, of_sum = torch.randn(2, m, N).double()
    total = sum(x @ w.t() for x, w in zip(xs, ws)) + bias + (residual if with_residual else 0)
    normed = torch.nn.functional.rms_norm(total, (N,), weight, 1e-5)
    ((normed * of_norm).sum() + (total * of_sum).sum()).backward()
    leaves = {"x": (leaf(xs[rank].to(dtype)), xs[rank]), "w": (leaf(ws[rank].to(dtype)), ws[rank]),
              "bias": (leaf(bias.to(dtype)), bias), "norm_weight": (leaf(weight.to(dtype)), weight)}  # fmt: skip
    if with_residual:
        leaves["residual"] = leaf(residual.to(dtype)), residual
    x, w, b, scale, *added = (got for got, _ in leaves.values())
    out, out_sum = st.gemm_all_reduce(x, w, bias=b, residual=added[0] if added else None, norm_weight=scale)
    close(out, normed, dtype, "normed")
    close(out_sum, total, dtype, "sum")
    ((out * of_norm.to(dtype)).sum() + (out_sum * of_sum.to(dtype)).sum()).backward()
    gradients_match(leaves, dtype)


def gather_case(m, dtype, weights, keeps, uses_gathered=False):
    rank, ranks = sizes()
    whole = random(m, K)
    ws = [[random(N + i, K) for i in range(weights)] for _ in range(ranks)]
    coefficients = [[torch.randn(m, N + i).double() for i in range(weights)] for _ in range(ranks)]
    of_gathered = [torch.randn(m, K).double() for _ in range(ranks)]
    for r in range(ranks):
        loss = sum(((whole @ w.t()) * c).sum() for w, c in zip(ws[r], coefficients[r]))
        (loss + ((whole * of_gathered[r]).sum() if uses_gathered else 0)).backward()
    x, mine = leaf(own(whole).to(dtype)), [leaf(w.to(dtype)) for w in ws[rank]]
    out = st.all_gather_gemm(x, mine, rows=m, return_gathered=keeps)
    gathered, outs = out if keeps else (None, out)
    if keeps:
        close(gathered, whole, dtype, "gathered")
    for got, w in zip(outs, ws[rank]):
        close(got, whole @ w.t(), dtype, "result")
    loss = sum((got * c.to(dtype)).sum() for got, c in zip(outs, coefficients[rank]))
    (loss + ((gathered * of_gathered[rank].to(dtype)).sum() if uses_gathered else 0)).backward()
    close(x.grad, own(whole.grad), dtype, "gradient of x")
    gradients_match({f"ws[{i}]": (got, w) for i, (got, w) in enumerate(zip(mine, ws[rank]))}, dtype)


def replicated_case(m, dtype):
    rank, ranks = sizes()
    whole, ws = random(m, K), [random(N, K) for _ in range(ranks)]
    coefficients = [torch.randn(m, N).double() for _ in range(ranks)]
    sum(((whole @ w.t()) * c).sum() for w, c in zip(ws, coefficients)).backward()
    x, w = leaf(whole.to(dtype)), leaf(ws[rank].to(dtype))
    out = st.replicated_gemm(x, w)
    close(out, whole @ ws[rank].t(), dtype, "result")
    (out * coefficients[rank].to(dtype)).sum().backward()
    gradients_match({"x": (x, whole), "w": (w, ws[rank])}, dtype)


def splits_of(ranks):
    return [[(2 * source + 3 * to) % 4 for to in range(ranks)] for source in range(ranks)]


def exchange_case(dtype, dispatch):
    rank, ranks = sizes()
    splits = splits_of(ranks)
    xs = [random(sum(splits[r]), K) for r in range(ranks)]
    ws = [random(N, K) for _ in range(ranks)]
    received = [torch.cat([xs[s].split(splits[s])[r] for s in range(ranks)]) for r in range(ranks)]
    products = [torch.cat([(xs[s] @ ws[s].t()).split(splits[s])[r] for s in range(ranks)]) for r in range(ranks)]
    wholes = [rows @ ws[r].t() for r, rows in enumerate(received)] if dispatch else products
    coefficients = [torch.randn_like(whole) for whole in wholes]
    sum((whole * c).sum() for whole, c in zip(wholes, coefficients)).backward()
    x, w = leaf(xs[rank].to(dtype)), leaf(ws[rank].to(dtype))
    out = (st.all_to_all_gemm if dispatch else st.gemm_all_to_all)(x, w, splits=splits)
    close(out, wholes[rank], dtype, "result")
    (out * coefficients[rank].to(dtype)).sum().backward()
    gradients_match({"x": (x, xs[rank]), "w": (w, ws[rank])}, dtype)


def mlp_case(m, dtype, activation):
    rank, ranks = sizes()
    whole = random(m, K)
    ups = [random(INNER * (2 if activation == "swiglu" else 1), K) for _ in range(ranks)]
    downs = [random(N, INNER) for _ in range(ranks)]
    coefficients = torch.randn(m, N).double()
    out = sum(sequential.activate(whole @ up.t(), activation) @ down.t() for up, down in zip(ups, downs))
    (out * coefficients).sum().backward()
    x, up, down = leaf(own(whole).to(dtype)), leaf(ups[rank].to(dtype)), leaf(downs[rank].to(dtype))
    got = st.mlp(x, up, down, activation=activation, rows=m)
    close(got, own(out), dtype, "result")
    (got * own(coefficients).to(dtype)).sum().backward()
    close(x.grad, own(whole.grad), dtype, "gradient of x")
    gradients_match({"up": (up, ups[rank]), "down": (down, downs[rank])}, dtype)


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


RANKS = pytest.mark.parametrize("ranks", [2, 3])
ROWS = pytest.mark.parametrize("m", [12, 7, 1])  # divided by the ranks, uneven, fewer than ranks
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


@RANKS
@ROWS
@pytest.mark.parametrize("case", [scatter_case, reduce_case])
def test_reducing_ops(ranks, m, case):
    for dtype in DTYPES:
        on_ranks(ranks, case, m, dtype, True)
    on_ranks(ranks, case, m, torch.float64, False)


@RANKS
def test_gemm_all_reduce_with_norm(ranks):
    for dtype in (torch.float64, torch.float32):
        on_ranks(ranks, norm_case, 7, dtype, True)
    on_ranks(ranks, norm_case, 7, torch.float64, False)


@RANKS
@ROWS
def test_all_gather_gemm(ranks, m):
    for dtype in DTYPES:
        on_ranks(ranks, gather_case, m, dtype, 1, False)
    on_ranks(ranks, gather_case, m, torch.float64, 2, False)
    on_ranks(ranks, gather_case, m, torch.float64, 2, True)
    on_ranks(ranks, gather_case, m, torch.float64, 1, True, True)


@RANKS
def test_replicated_gemm(ranks):
    for dtype in DTYPES:
        on_ranks(ranks, replicated_case, 7, dtype)
    on_ranks(ranks, replicated_case, 0, torch.float64)


@RANKS
@pytest.mark.parametrize("dispatch", [True, False])
def test_all_to_all(ranks, dispatch):
    for dtype in (torch.float64, torch.bfloat16):
        on_ranks(ranks, exchange_case, dtype, dispatch)


@RANKS
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu", "swiglu"])
def test_mlp(ranks, activation):
    for m in (6, 7, 1):
        on_ranks(ranks, mlp_case, m, torch.float64, activation)


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


def strides_and_dimensions_case():
    rank, ranks = sizes()
    x, w = torch.randn(4 * ranks, 3, 2 * K)[..., ::2], torch.randn(K, N).t()
    flat, dense = x.reshape(-1, K), w.contiguous()
    rows = st.gemm_reduce_scatter(flat.contiguous(), dense)
    torch.testing.assert_close(st.gemm_reduce_scatter(flat, w), rows)
    torch.testing.assert_close(st.gemm_reduce_scatter(x, w), rows.view(4, 3, N))
    torch.testing.assert_close(st.gemm_all_reduce(x, w).flatten(0, 1), st.gemm_all_reduce(flat.contiguous(), dense))
    (out,) = st.all_gather_gemm(x, [w])
    assert out.shape == (4 * ranks * ranks, 3, N)
    torch.testing.assert_close(out.flatten(0, 1), st.all_gather_gemm(flat.contiguous(), [dense])[0])
    for at in (0, 1):
        batch = torch.randn(2 * ranks, 3 * ranks, K)
        moved = batch.movedim(at, 0).contiguous()
        expected = st.gemm_reduce_scatter(moved, w).movedim(0, at)
        torch.testing.assert_close(st.gemm_reduce_scatter(batch, w, dim=at), expected)
        kept, (out,) = st.all_gather_gemm(batch, [w], dim=at, return_gathered=True)
        torch.testing.assert_close(kept, st.all_gather_gemm(moved, [w], return_gathered=True)[0].movedim(0, at))
        torch.testing.assert_close(out, kept @ w.t())
    with pytest.raises(errors.InvalidArgument, match="dim = 2 must be"):
        st.gemm_reduce_scatter(batch, w, dim=2)
    up = torch.randn(2 * INNER, K)
    assert st.mlp(x, up, torch.randn(N, INNER)).shape == (4 * ranks, 3, N)
    activated = st.gemm_reduce_scatter(flat, up, bias=torch.ones(2 * INNER), activation="swiglu")
    torch.testing.assert_close(activated, sequential.activate(st.gemm_reduce_scatter(flat, up) + 1, "swiglu"))


def test_strides_and_dimensions():
    on_ranks(2, strides_and_dimensions_case)


def bad_input_case():
    ranks = dist.get_world_size()
    x, w = torch.randn(4, K), torch.randn(N, K)
    q = torch.randn(4, 2 * ranks, K)
    wrong = [
        ("group = 'nose'", lambda: st.gemm_all_reduce(x, w, "nose")),
        ("group = 3", lambda: st.gemm_all_reduce(x, w, 3)),
        ("w.shape", lambda: st.gemm_all_reduce(x, w.t())),
        ("w.dtype", lambda: st.gemm_reduce_scatter(x, w.double())),
        ("w.device", lambda: st.gemm_reduce_scatter(x, w.to("meta"))),
        ("x.dtype", lambda: st.gemm_reduce_scatter(x.int(), w.int())),
        ("bias.shape", lambda: st.gemm_reduce_scatter(x, w, bias=torch.randn(N + 1))),
        ("bias.dtype", lambda: st.gemm_all_reduce(x, w, bias=torch.randn(N).half())),
        ("residual.shape", lambda: st.gemm_all_reduce(x, w, residual=torch.randn(3, N), norm_weight=torch.randn(N))),
        ("norm_weight.shape", lambda: st.gemm_all_reduce(x, w, residual=torch.randn(4, N), norm_weight=torch.randn(1))),
        ("activation = 'tanh'", lambda: st.gemm_reduce_scatter(x, w, activation="tanh")),
        ("dimension 0", lambda: st.gemm_reduce_scatter(torch.randn(2 * ranks + 1, 2, K), w)),
        ("must be even", lambda: st.mlp(x, torch.randn(3, K), w)),
        ("ws is empty", lambda: st.all_gather_gemm(x, [])),
        (r"ws\[1\].shape", lambda: st.all_gather_gemm(x, [w, torch.randn(N, K + 1)])),
        ("of rows = 99", lambda: st.all_gather_gemm(x, [w], rows=99)),
        ("splits must be square", lambda: st.all_to_all_gemm(x, w, splits=[[1, 2, 3]])),
        (r"splits\[\d\] sends", lambda: st.all_to_all_gemm(x, w, splits=[[9] * ranks] * ranks)),
        (r"expected \[tokens, heads", lambda: st.attention_reduce_scatter(x, x, x, w)),
        ("w.shape", lambda: st.attention_reduce_scatter(q, q, q, torch.randn(N, K + 1))),
        (r"k.shape = \(4, 8\)", lambda: st.ulysses_attention(q, x, x)),
        ("v.shape", lambda: st.ulysses_attention(q, q, q[:, :1])),
        ("k has 3 tokens", lambda: st.ulysses_attention(q, q[:3], q[:3])),
        ("ranks must divide", lambda: st.ulysses_attention(q[:, :1], q[:, :1], q[:, :1])),
        ("k's must divide q's", lambda: st.ulysses_attention(q[:, :2], q, q)),
        ("other batch or head", lambda: st.ulysses_attention(q, q[..., :4], q)),
        ("torch.int32", lambda: st.ulysses_attention(q.int(), q.int(), q.int())),
        ("of rows = 99", lambda: st.ulysses_attention(q, q, q, rows=99)),
        ("k's must divide q's", lambda: st.ring_attention(q[:, :2], q, q)),
        ("in a zigzag", lambda: st.ring_attention(q[:3], q[:3], q[:3], zigzag=True)),
        ("of rows = 99", lambda: st.ring_attention(q, q, q, rows=99)),
        ("down.shape", lambda: st.mlp(x, torch.randn(6, K), torch.randn(N, 4))),
    ]  # fmt: skip
    for match, call in wrong:
        with pytest.raises(errors.InvalidArgument, match=match):
            call()
    with pytest.raises(errors.Unsupported, match="activation = 'relu' has no gradient"):
        st.gemm_reduce_scatter(x.requires_grad_(), w, activation="relu")
    with pytest.raises(TypeError, match="no setting 'nose'"):
        st.configure(nose=1)


def test_bad_input_names_the_argument():
    on_ranks(2, bad_input_case)


def subgroup_case():
    rank, ranks = sizes()
    group = dist.new_group([0, 2])
    if rank == 1:
        return
    x, w = torch.full((4, K), rank + 1.0), torch.ones(N, K)
    torch.testing.assert_close(st.gemm_all_reduce(x, w, group), torch.full((4, N), 4.0 * K))
    torch.testing.assert_close(st.gemm_reduce_scatter(x, w, group.group_name), torch.full((2, N), 4.0 * K))


def test_a_group_of_some_ranks():
    on_ranks(3, subgroup_case)


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError, match="off by"):
        close(torch.ones(2, 2) * 1.01, torch.ones(2, 2), torch.float32, "result")
    with pytest.raises(AssertionError, match="rank 0"):
        on_ranks(2, close, torch.ones(1), torch.zeros(1), torch.float32, "result")
