"""Inputs and comparisons of the cases: what the ops do by a context, and by mm + NCCL."""

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch import shapes
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.groups import find_group, name_of
from shingle.torch.warming import forced

K, N, INNER = 256, 384, 128


def integers(*shape, dtype, seed=None):
    """Integers in [-1, 1]: sums are exact in every dtype, in any order. seed: the same on all ranks."""
    generator = torch.Generator("cuda")
    generator.manual_seed(seed if seed is not None else torch.randint(1 << 30, (), device="cpu").item() + rank_of())
    return torch.randint(-1, 2, shape, generator=generator, device="cuda").to(dtype)


def rank_of():
    return dist.get_rank()


def world_size():
    return dist.get_world_size()


def calls(m, dtype):
    """Each op on m rows: {name: (function of leaves, leaves)}."""
    group = find_group(name_of(None))
    mine = shapes.own_rows(m, group)
    even = [m // group.size + (r < m % group.size) for r in range(group.size)]
    splits = [even] * dist.get_world_size()

    def new(*shape, seed=None):
        return integers(*shape, dtype=dtype, seed=seed).requires_grad_()

    x, w, shard = new(m, K), new(N, K), new(mine, K)
    bias, residual, weight = new(N, seed=1), new(m, N, seed=2), new(N, seed=3)
    return {
        "gemm_reduce_scatter": (lambda x, w, b: st.gemm_reduce_scatter(x, w, bias=b), (x, w, bias)),
        "gemm_all_reduce": (lambda x, w, b: st.gemm_all_reduce(x, w, bias=b), (x, w, bias)),
        "gemm_all_reduce_norm": (
            lambda x, w, b, r, n: st.gemm_all_reduce(x, w, bias=b, residual=r, norm_weight=n),
            (x, w, bias, residual, weight),
        ),
        "all_gather_gemm": (lambda x, w: st.all_gather_gemm(x, [w], rows=m), (shard, w)),
        "all_gather_gemm, gathered": (
            lambda x, w, v: st.all_gather_gemm(x, [w, v], rows=m, return_gathered=True),
            (shard, w, new(INNER, K)),
        ),
        "all_to_all_gemm": (lambda x, w: st.all_to_all_gemm(x, w, splits=splits), (x, w)),
        "gemm_all_to_all": (lambda x, w: st.gemm_all_to_all(x, w, splits=splits), (x, w)),
        "attention_reduce_scatter": (
            lambda q, k, v, w: st.attention_reduce_scatter(q, k, v, w, causal=True),
            [*(torch.randn(m, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (4, 2, 2)), new(N, 256)],
        ),
        "ulysses_attention": (
            lambda q, k, v: st.ulysses_attention(q, k, v, causal=True, rows=m),
            [torch.randn(mine, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (8, 4, 4)],
        ),
        "ring_attention": (
            lambda q, k, v: st.ring_attention(q, k, v, causal=True, rows=m),
            [torch.randn(mine, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (6, 3, 3)],
        ),
        "ring_attention, zigzag": (
            lambda q, k, v: st.ring_attention(q, k, v, causal=True, zigzag=True, rows=m),
            [
                torch.randn(shapes.own_rows(m, group, True), heads, 128, device="cuda").to(dtype).requires_grad_()
                for heads in (4, 2, 2)
            ],
        ),
        "ulysses_attention, packed": (
            lambda q, k, v: st.ulysses_attention(q, k, v, causal=True, rows=m, cu_seqlens=[0, m // 3, m]),
            [torch.randn(mine, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (8, 4, 4)],
        ),
        "ring_attention, packed": (
            lambda q, k, v: st.ring_attention(q, k, v, causal=True, rows=m, cu_seqlens=[0, m // 3, m // 2, m]),
            [torch.randn(mine, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (6, 3, 3)],
        ),
        "mlp": (
            lambda x, u, d: st.mlp(x, u, d, activation="relu", rows=m),
            (shard, new(INNER, K), new(N, INNER)),
        ),
        "moe": experts(max(m - 3 * group.rank, 0), dtype),
        "moe, tensor_parallel": experts(max(m - 3 * group.rank, 0), dtype, tensor_parallel=True),
        "moe, capacity": experts(max(m - 3 * group.rank, 0), dtype, capacity=60, max_tokens=m),
    }


def experts(tokens, dtype, **options):
    """moe with weights of four experts a rank, most rows for few of them, and its leaves. options: of moe."""
    count = 4 if options.get("tensor_parallel") else 4 * world_size()
    share = (1 / torch.arange(1.0, count + 1)).expand(max(tokens, 1), -1)
    ids = torch.multinomial(share, 2, replacement=True)[:tokens].cuda()
    sizes = (tokens, K), (4, 2 * INNER, K), (4, N, INNER)
    leaves = [integers(*shape, dtype=dtype).requires_grad_() for shape in sizes]
    weights = torch.rand(tokens, 2, device="cuda").requires_grad_()
    return lambda x, up, down, weights: st.moe(x, up, down, ids, weights, **options), (*leaves, weights)


def outcome(call, leaves, overlapped, backward):
    """Results of a call, and gradients of its leaves."""
    for leaf in leaves:
        leaf.grad = None
    with forced(PREDICTED if overlapped else LIBRARY), torch.set_grad_enabled(backward):
        outs = torch.utils._pytree.tree_leaves(call(*leaves))
        if backward:
            sum(
                (out.float() * (1 + torch.arange(out.numel(), device=out.device).view(out.shape) % 3)).sum()
                for out in outs
            ).backward()
    return [out.detach() for out in outs] + [leaf.grad for leaf in leaves if backward]


def compare(got, expected, dtype, what):
    """Relative Frobenius norm: roundings differ in order of sums only."""
    bound = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    for index, (g, e) in enumerate(zip(got, expected, strict=True)):
        assert g is not None and g.shape == e.shape and g.dtype == e.dtype, (what, index)
        error = ((g.double() - e.double()).norm() / e.double().norm().clamp_min(1e-30)).item() if e.numel() else 0
        assert error <= bound, f"{what}, output {index}: off by {error:.2e}, bound {bound:.0e}"


def grown(call, leaves):
    """Result and gradients of a call by what the table says, with the weights of outcome()."""
    out = call(*leaves)
    weights = (1 + torch.arange(out.numel(), device=out.device).view(out.shape) % 3).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, weights)]
