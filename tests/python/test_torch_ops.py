"""Ops with products on CPU: results against mm + c10d on whole matrices, and gradients against those of the whole."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from comparisons import (  # noqa: E402
    DTYPES, INNER, RANKS, ROWS, K, N, close, gradients_match, leaf, own, random, sizes,
)  # fmt: skip
from ranks import on_ranks  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import sequential  # noqa: E402


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


def test_the_comparison_can_fail():
    with pytest.raises(AssertionError, match="off by"):
        close(torch.ones(2, 2) * 1.01, torch.ones(2, 2), torch.float32, "result")
    with pytest.raises(AssertionError, match="rank 0"):
        on_ranks(2, close, torch.ones(1), torch.zeros(1), torch.float32, "result")
