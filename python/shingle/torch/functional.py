"""The ops as functions. w is [out, in] as in nn.Linear. x is [..., in]; its leading dimensions are rows.

`group` is a ProcessGroup, its group_name, a 1-D DeviceMesh, or None for the default group. All ranks of a group make
the same calls in the same order.

Scattered rows: rank r of W holds rows [r · ceil(rows / W), …) of the whole, so the last ranks may hold fewer, or none.
An x of more than two dimensions is scattered or gathered in dimension `dim`, which the number of ranks must divide. A
dim other than 0 costs copies, unless the dimensions before it have size 1.

Wrong arguments raise InvalidArgument, which names the argument.
"""

import torch

from ..errors import InvalidArgument
from . import ops  # noqa: F401  registers torch.ops.shingle
from .groups import name_of, ranks_of
from .sequential import rms_norm
from .shapes import check_capacity, check_replicated, check_types

_ops = torch.ops.shingle


def gemm_reduce_scatter(x, w, group=None, *, bias=None, activation=None, dim=0):
    """Rows of activation(Σ_ranks x·wᵀ + bias) that this rank keeps.

    x: [rows, k] or [d0, ..., k]. w: [n, k]. bias: [n], equal on all ranks, added once. activation: None, "relu",
    "gelu", "silu" or "swiglu" ([gate | up] to half the columns); not differentiable. Returns [own rows, n], or x's
    shape with n columns and 1 / ranks of dimension `dim`.
    """
    group = name_of(group)
    if x.dim() == 2 and dim == 0:
        return _ops.gemm_reduce_scatter(x, w, group, bias, activation)
    dim, ranks = leading(x, dim), ranks_of(group)
    if x.shape[dim] % ranks != 0:
        raise InvalidArgument(f"x.shape = {tuple(x.shape)}: dimension {dim} must be a multiple of the {ranks} ranks")
    x = x.movedim(dim, 0)
    out = _ops.gemm_reduce_scatter(x.flatten(0, -2), w, group, bias, activation)
    return out.view(x.shape[0] // ranks, *x.shape[1:-1], out.shape[-1]).movedim(0, dim)


def as_rows(x):
    """x [..., k] as [rows, k]."""
    if x.dim() < 2:
        raise InvalidArgument(f"x.shape = {tuple(x.shape)}; expected at least two dimensions, [..., k]")
    return x.flatten(0, -2)


def leading(x, dim):
    """The number of a dimension that is not the last."""
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise InvalidArgument(f"dim = {dim} must be one of the {x.dim() - 1} leading dimensions of x")
    return dim % x.dim()


def gemm_all_reduce(x, w, group=None, *, bias=None, residual=None, norm_weight=None, eps=1e-5):
    """Σ_ranks x·wᵀ + bias + residual, whole on every rank; with norm_weight its RMSNorm too.

    x: [..., k]. w: [n, k]. bias, norm_weight: [n]. residual: [..., n]. All but x and w are equal on all ranks.
    Returns the sum [..., n], or (normed, sum) with norm_weight. eps: of the RMSNorm.

    Backward takes the gradients of the results to be equal on all ranks, as Megatron does.
    """
    group, rows = name_of(group), as_rows(x)
    shape = (*x.shape[:-1], w.shape[0])
    if norm_weight is not None and residual is not None:
        normed, total = _ops.gemm_all_reduce_norm(rows, w, residual.flatten(0, -2), norm_weight, group, bias, eps)
        return normed.view(shape), total.view(shape)
    total = _ops.gemm_all_reduce(rows, w, group, bias).view(shape)
    if residual is not None:
        total = total + residual
    return total if norm_weight is None else (rms_norm(total, norm_weight, eps), total)


def all_gather_gemm(x, ws, group=None, *, rows=None, return_gathered=False, dim=0):
    """[gathered x · wᵀ for w in ws].

    x: this rank's rows, [own rows, k] or [d0, ..., k]. ws: weights [n_i, k]. rows: rows of all ranks, needed if ranks
    hold different numbers; x is then 2-D. Returns a list of [rows, n_i], or of x's shape with n_i columns and `ranks`
    times dimension `dim`. return_gathered: returns (gathered x, list), and backward uses these rows instead of
    gathering again.
    """
    group = name_of(group)
    if x.dim() == 2 and dim == 0:
        gathered, outs = _ops.all_gather_gemm(x, list(ws), group, rows, return_gathered)
        return (gathered, outs) if return_gathered else outs
    if rows is not None:
        raise InvalidArgument(f"rows = {rows} needs x of two dimensions and dim = 0; x has {x.dim()}")
    dim = leading(x, dim)
    x = x.movedim(dim, 0)
    gathered, outs = _ops.all_gather_gemm(x.flatten(0, -2), list(ws), group, None, return_gathered)
    shape = (x.shape[0] * ranks_of(group), *x.shape[1:-1])
    outs = [out.view(*shape, out.shape[-1]).movedim(0, dim) for out in outs]
    return (gathered.view(*shape, x.shape[-1]).movedim(0, dim), outs) if return_gathered else outs


def replicated_gemm(x, w, group=None):
    """x·wᵀ where x is equal on all ranks: a column-parallel linear layer without sequence parallelism.

    x: [..., k]. w: [n, k]. Returns [..., n]. Forward does not communicate; backward sums the gradient of x over the
    ranks, overlapped.
    """
    return _ops.replicated_gemm(as_rows(x), w, name_of(group)).view(*x.shape[:-1], w.shape[0])


def all_to_all_gemm(x, w, group=None, *, splits):
    """received rows · wᵀ: the dispatch of a mixture of experts.

    x: [sent rows, k], sorted by destination. w: [n, k]. splits[source][destination]: numbers of rows, of all ranks and
    equal on all ranks. Returns [received rows, n], sorted by source.
    """
    return _ops.all_to_all_gemm(x, w, name_of(group), flat(splits))


def gemm_all_to_all(x, w, group=None, *, splits):
    """The rows of x·wᵀ of all ranks that come to this rank: the combine of a mixture of experts.

    Arguments and order of rows as in all_to_all_gemm.
    """
    return _ops.gemm_all_to_all(x, w, name_of(group), flat(splits))


def flat(splits):
    if any(len(row) != len(splits) for row in splits):
        raise InvalidArgument("splits must be square: splits[source][destination]")
    return [rows for row in splits for rows in row]


def attention_reduce_scatter(q, k, v, w, group=None, *, causal=False, cu_seqlens=None):
    """Own rows of Σ_ranks attention(q, k, v) · wᵀ: tensor-parallel attention with its output projection.

    q: this rank's heads of all tokens, [tokens, heads, head_dim]. k, v: [tokens, kv_heads, head_dim]; kv_heads divides
    heads. w: [n, heads · head_dim], as in nn.Linear. causal: a token sees itself and earlier ones. cu_seqlens: packed
    sequences, as in ulysses_attention. Scores are scaled by 1/sqrt(head_dim). Returns [own rows, n]: rank r has
    rows [r · ceil(tokens / ranks), …). Backward gathers the gradient's rows for the product, overlapped, and attends
    again.
    """
    if q.dim() != 3:
        raise InvalidArgument(f"q.shape = {tuple(q.shape)}; expected [tokens, heads, head_dim]")
    flat, packed = flat_heads(q, k, v), on_host(cu_seqlens)
    return _ops.attention_reduce_scatter(*flat, w, name_of(group), q.shape[-1], causal, packed)


def ulysses_attention(q, k, v, group=None, *, causal=False, rows=None, cu_seqlens=None):
    """Attention of tokens that are sharded over the ranks: exchanges tokens for heads and back (Ulysses).

    q: this rank's tokens, [own tokens, heads, head_dim] or [own tokens, batch, heads, head_dim]. k, v: likewise with
    kv_heads, a divisor of heads; the number of ranks must divide batch · kv_heads. causal: a token sees itself and
    earlier ones. rows: tokens of all ranks, needed if ranks hold different numbers. Returns q's shape. Scores are
    scaled by 1/sqrt(head_dim). Backward attends again.

    cu_seqlens: the sequences that the tokens of all ranks are packed of, as in FlashAttention: where each begins, and
    the number of tokens. A list or an integer tensor, equal on all ranks; None: one sequence. A token sees its own
    sequence. A tensor on a GPU is copied to the host, which waits for the GPU.
    """
    flat, packed = flat_heads(q, k, v), on_host(cu_seqlens)
    return _ops.ulysses_attention(*flat, name_of(group), q.shape[-1], causal, rows, packed).view(q.shape)


def ring_attention(q, k, v, group=None, *, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    """Attention of tokens that are sharded over the ranks: k and v go to all ranks (ring attention).

    Arguments and result are as in ulysses_attention, but the number of ranks need not divide the heads. zigzag: the
    tokens are cut into 2 · ranks chunks, and rank r holds chunks r and 2 · ranks - 1 - r, in this order; all ranks
    then have equal work if one causal sequence has all tokens. A gradient must be wanted on all ranks or on none. If it
    is, and attention-backward serves it, forward keeps its result and its log-sum-exp for an overlapped backward. Else
    backward attends again, between all-gathers of k and v and reduce-scatters of their gradients, which are summed in
    fp32.
    """
    flat = flat_heads(q, k, v)
    given = *flat, name_of(group), q.shape[-1], causal, zigzag, rows, on_host(cu_seqlens)
    if torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        return _ops.ring_attention_with_lse(*given)[0].view(q.shape)
    return _ops.ring_attention(*given).view(q.shape)


def moe(x, w_up, w_down, topk_ids, topk_weights, group=None, *, activation="swiglu", tensor_parallel=False,
        capacity=None, max_tokens=None, replicated=False):  # fmt: skip
    """Σ_j topk_weights[i, j] · expert(x_i) over the experts topk_ids[i, j] of token i, of experts that ranks share.

    x: this rank's tokens, [tokens, hidden] or [..., hidden]; ranks may have different numbers of them, or none.
    w_up, w_down: this rank's experts, the rank-th part of all, [experts, inner, hidden] (swiglu: [experts, 2·inner,
    hidden], gate rows first) and [experts, n, inner], as in nn.Linear. An expert is activation(x·upᵀ)·downᵀ.
    topk_ids: int32 or int64, [..., topk], of all experts. topk_weights: fp32 (float64 for such x), [..., topk].
    activation: None, "relu", "gelu", "silu" or "swiglu". Returns x's shape with n columns.

    tensor_parallel: expert tensor parallelism instead of expert parallelism. w_up and w_down are then this rank's slice
    of all experts: `inner` is the rank-th part of the hidden layer of each, for swiglu the same part of gate and of up.
    All tokens come to all ranks, and the ranks' sums are added.

    The ranks exchange topk_ids, and the host waits for them: a CUDA graph cannot hold the call. Wrong arguments of one
    rank raise InvalidArgument on all ranks. A gradient must be wanted on all ranks or on none. Backward sends the
    tokens and computes the first product again.

    capacity: the device routes, and the host waits for nothing, so a CUDA graph holds the call. An expert takes at most
    `capacity` choices of one rank's tokens (replicated: of all tokens): choice 0 of all tokens first, then choice 1, and so on. The others are
    dropped: they add nothing to the result, and have no gradients. An id of -1 is no choice. Returns (result, dropped);
    dropped is int32 [2] on x's device: choices of own tokens that were dropped, and ids that are neither an expert nor
    -1. max_tokens: the most tokens of any rank, equal on all ranks; None: all ranks have as many as this one. Wrong
    arguments raise on their rank alone.

    replicated: all ranks have the same tokens, as in tensor-parallel inference: x, topk_ids and topk_weights must be
    equal on all ranks, and so is the result. No token travels, only sums do. Needs tensor_parallel and a capacity;
    capacity = tokens drops nothing where a token chooses an expert at most once. Backward takes the gradients of the
    result to be equal on all ranks.
    """
    check_types(torch.Tensor, x=x, w_up=w_up, w_down=w_down, topk_ids=topk_ids, topk_weights=topk_weights)
    check_types((str, type(None)), activation=activation)
    check_types((int, torch.SymInt, type(None)), capacity=capacity, max_tokens=max_tokens)
    rows, ids, weights = (of.flatten(0, -2) if of.dim() > 2 else of for of in (x, topk_ids, topk_weights))
    given = rows, w_up, w_down, ids, weights, name_of(group), activation
    if capacity is None:
        check_replicated(replicated, tensor_parallel, capacity)
        check_capacity(capacity, max_tokens)
        return _ops.moe(*given, tensor_parallel)[0].view(*x.shape[:-1], w_down.shape[1])
    out, dropped = _ops.moe_with_capacity(*given, capacity, max_tokens, tensor_parallel, replicated)
    return out.view(*x.shape[:-1], out.shape[1]), dropped


def on_host(cu_seqlens):
    """A list or a tensor of integers as a tensor on the host; None stays None."""
    if cu_seqlens is None:
        return None
    if not isinstance(cu_seqlens, torch.Tensor):
        if not isinstance(cu_seqlens, (list, tuple)) or not all(isinstance(at, (int, torch.SymInt)) for at in cu_seqlens):
            raise InvalidArgument(f"cu_seqlens = {cu_seqlens!r}: expected whole numbers, as a list or a tensor")
        return torch.tensor(cu_seqlens, dtype=torch.int32)
    if cu_seqlens.is_cuda and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
        raise InvalidArgument("cu_seqlens is on a GPU, which a CUDA graph capture cannot wait for; pass a list")
    return cu_seqlens.cpu()


def flat_heads(q, k, v):
    """[own tokens, …, heads, head_dim] as [own tokens, … · heads · head_dim]."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() not in (3, 4) or x.dim() != q.dim():
            raise InvalidArgument(
                f"{name}.shape = {tuple(x.shape)}; expected [own tokens, heads, head_dim] or "
                "[own tokens, batch, heads, head_dim], alike for q, k and v"
            )
        if x.shape[-1] != q.shape[-1] or x.shape[1:-2] != q.shape[1:-2]:
            raise InvalidArgument(f"{name}.shape = {tuple(x.shape)}, but q.shape = {tuple(q.shape)}: other batch or head")
    return [x.flatten(1) for x in (q, k, v)]


def mlp(x, up, down, group=None, *, activation="swiglu", rows=None):
    """Own rows of Σ_ranks activation(gathered x · upᵀ) · downᵀ: a sequence-parallel MLP.

    x: this rank's rows, [own rows, k] or [d0, ..., k]. up: [inner, k]; swiglu: [2·inner, k], gate rows first.
    down: [n, inner]. rows: as in all_gather_gemm. Returns x's shape with n columns. Backward computes the first product
    again.
    """
    if x.dim() != 2 and rows is not None:
        raise InvalidArgument(f"rows = {rows} needs x of two dimensions; x has {x.dim()}")
    out = _ops.mlp(as_rows(x), up, down, name_of(group), activation, rows)
    return out.view(*x.shape[:-1], down.shape[0])
