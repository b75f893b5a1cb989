"""The ops as mm and c10d collectives, one after the other. Groups of vLLM take its own all-reduce.

They serve CPU tensors, calls that mechanisms do not make faster, and tests as the reference.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from . import attention, shapes
from .attention import parts_of
from .groups import find_group


def activate(x, activation):
    """Applies an activation. swiglu takes [gate | up] and has half as many columns."""
    if activation == "swiglu":
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up
    return getattr(F, activation)(x) if activation else x


def rms_norm(x, weight, eps):
    """RMSNorm of rows, computed in fp32 at least and rounded once."""
    if x.is_cuda and x.dtype == weight.dtype:  # one kernel, which does so
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.rms_norm(x.to(wide), weight.shape, weight.to(wide), eps).to(x.dtype)


def padded_shard(x, rows, group):
    """Dense x with as many rows as the largest shard. Padding comes after all rows: only the last ranks have fewer."""
    shard = shapes.shard_rows(rows, group)
    return F.pad(x, (0, 0, 0, shard - x.shape[0])) if x.shape[0] < shard else x.contiguous()


def all_gather(x, rows, group, async_op=False):
    """[own rows, k] of every rank to [rows, k]. async_op: also returns c10d's Work; wait() before the rows are used."""
    x = padded_shard(x, rows, group)
    gathered = x.new_empty(x.shape[0] * group.size, x.shape[1])
    work = dist.all_gather_into_tensor(gathered, x, group=group.process_group, async_op=async_op)
    return (gathered[:rows], work) if async_op else gathered[:rows]


def reduce_scatter(x, group, async_op=False):
    """The sum of [rows, n] over the ranks; each keeps its own rows. async_op: as of all_gather."""
    rows = x.shape[0]
    shard = shapes.shard_rows(rows, group)
    if rows < shard * group.size:
        x = F.pad(x, (0, 0, 0, shard * group.size - rows))
    out = x.new_empty(shard, x.shape[1])
    work = dist.reduce_scatter_tensor(out, x.contiguous(), group=group.process_group, async_op=async_op)
    out = out[: shapes.own_rows(rows, group)]
    return (out, work) if async_op else out


def all_to_all(x, table, group, async_op=False):
    """Rows of x, sorted by destination, to rows sorted by source. table: rows sent, [source][destination].

    async_op: as of all_gather.
    """
    sent, received = table[group.rank], [row[group.rank] for row in table]
    out = x.new_empty(sum(received), x.shape[1])
    work = dist.all_to_all_single(out, x.contiguous(), received, sent, group=group.process_group, async_op=async_op)
    return (out, work) if async_op else out


def gemm_reduce_scatter(x, w, group, bias=None, activation=None):
    out = reduce_scatter(x @ w.t(), find_group(group))
    return activate(out if bias is None else out + bias, activation)


def gemm_all_reduce(x, w, group, bias=None):
    out = find_group(group).all_reduce(x @ w.t())
    return out if bias is None else out + bias


def gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias=None, eps=1e-5):
    total = gemm_all_reduce(x, w, group, bias) + residual
    return rms_norm(total, norm_weight, eps), total


def all_gather_gemm(x, ws, group, rows=None, return_gathered=False):
    group = find_group(group)
    gathered = all_gather(x, shapes.all_rows(x, rows, group), group)
    return (gathered if return_gathered else x.new_empty(0, x.shape[1])), [gathered @ w.t() for w in ws]


def weight_gradient(grad, x, w):
    """gradᵀ·x in the strides of w, so that an optimiser sees one layout."""
    return grad.t() @ x if w.stride(-1) == 1 or w.dim() != 2 else (x.t() @ grad).t()


def gradients_of_weight(grad, x, w, bias):
    """Gradients of w and of bias; the latter is empty if not `bias`."""
    return weight_gradient(grad, x, w), grad.sum(0) if bias else grad.new_empty(0)


def gather_gradients(grad, x, w, group, bias):
    gathered = all_gather(grad, x.shape[0], find_group(group))
    return gathered @ w, *gradients_of_weight(gathered, x, w, bias)


def scatter_gemm(grad, w, x, group, read):
    """gemm_reduce_scatter(grad, w), and read(gathered x), which multiplies these rows. Eager.

    As in Megatron, the product overlaps the all-gather, and `read` overlaps the reduce-scatter.
    """
    gathered, gathering = all_gather(x, grad.shape[0], group, async_op=True)
    dx, scattering = reduce_scatter(grad @ w.t(), group, async_op=True)
    gathering.wait()
    read(gathered)
    scattering.wait()
    return dx


def scatter_gradients(grads, x, ws, group, kernel=scatter_gemm):
    """Gradients of x and ws of all_gather_gemm(x, ws). kernel: scatter_gemm of `sequential` or `overlapped_gradients`."""
    dws = []

    def read(gathered):
        dws.extend(weight_gradient(grad, gathered, w) for grad, w in zip(grads, ws))

    return kernel(joined(grads, 1), joined(ws, 0).t(), x, find_group(group), read), dws


def joined(tensors, dim):
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


def replicated_gemm(x, w, group):
    return x @ w.t()


def all_to_all_gemm(x, w, group, splits):
    group = find_group(group)
    return all_to_all(x, shapes.split_table(splits, group), group) @ w.t()


def gemm_all_to_all(x, w, group, splits):
    group = find_group(group)
    return all_to_all(x @ w.t(), shapes.split_table(splits, group), group)


def to_heads(tensors, rows, group):
    """Matrices with own tokens of all heads to all tokens of own heads, in one all-to-all.

    tensors: [own tokens, columns]. Rank r gets the r-th of equal parts of the columns of each.
    """
    parts = [x.unflatten(1, (group.size, x.shape[1] // group.size)) for x in tensors]
    packed = torch.cat(parts, 2).transpose(0, 1)  # [ranks, own tokens, columns of a rank]
    sent = shapes.rows_by_rank(rows, group)
    table = [[count] * group.size for count in sent]
    received = all_to_all(packed.reshape(group.size * packed.shape[1], packed.shape[2]), table, group)
    return received.split([part.shape[2] for part in parts], 1)


def to_tokens(tensors, rows, group):
    """The inverse of to_heads()."""
    sent = shapes.rows_by_rank(rows, group)
    received = all_to_all(torch.cat(tensors, 1), [sent] * group.size, group)
    parts = received.unflatten(0, (group.size, sent[group.rank])).transpose(0, 1)
    return [part.flatten(1) for part in parts.split([x.shape[1] for x in tensors], 2)]


def whole_parts(tokens, causal, cu_seqlens):
    """The attention of all tokens to all tokens."""
    return parts_of([(0, tokens)], tokens, causal, shapes.lengths_of(cu_seqlens, tokens))


def attention_gradients(grad, q, k, v, head_dim, causal, cu_seqlens=None):
    return attention.gradients(grad, q, k, v, head_dim, whole_parts(q.shape[0], causal, cu_seqlens))


def attention_reduce_scatter(q, k, v, w, group, head_dim, causal=False, cu_seqlens=None):
    parts = whole_parts(q.shape[0], causal, cu_seqlens)
    return gemm_reduce_scatter(attention.attend(q, k, v, head_dim, parts), w, group)


def ulysses_attention(q, k, v, group, head_dim, causal=False, rows=None, cu_seqlens=None):
    group = find_group(group)
    rows = shapes.all_rows(q, rows, group)
    parts = whole_parts(rows, causal, cu_seqlens)
    (out,) = to_tokens([attention.attend(*to_heads([q, k, v], rows, group), head_dim, parts)], rows, group)
    return out.contiguous()


def ulysses_gradients(grad, q, k, v, group, head_dim, causal, rows, cu_seqlens=None):
    group = find_group(group)
    rows = shapes.all_rows(q, rows, group)
    parts = whole_parts(rows, causal, cu_seqlens)
    *inputs, grad = to_heads([q, k, v, grad], rows, group)
    _, *gradients = attention.gradients(grad, *inputs, head_dim, parts)
    return tuple(x.contiguous() for x in to_tokens(gradients, rows, group))


def token_order(rows, group, zigzag, device):
    """The row of each token among the ranks' shards, one behind another and padded to the largest."""
    places = torch.arange(shapes.shard_rows(rows, group, zigzag) * group.size, device=device)
    if zigzag:
        first, second = places.unflatten(0, (group.size, 2, -1)).unbind(1)
        places = torch.cat((first.flatten(), second.flip(0).flatten()))
    return places[:rows]


def gather_tokens(x, rows, group, zigzag):
    """[own tokens, columns] of every rank to [tokens, columns]."""
    shard = shapes.shard_rows(rows, group, zigzag)
    gathered = all_gather(F.pad(x, (0, 0, 0, shard - x.shape[0])), shard * group.size, group)
    return gathered[token_order(rows, group, zigzag, x.device)]


def scatter_tokens(x, group, zigzag):
    """The sum of [tokens, columns] over the ranks in fp32 at least; each keeps its own tokens."""
    rows, wide = x.shape[0], torch.promote_types(x.dtype, torch.float32)
    placed = x.new_zeros(shapes.shard_rows(rows, group, zigzag) * group.size, x.shape[1], dtype=wide)
    placed[token_order(rows, group, zigzag, x.device)] = x.to(wide)
    return reduce_scatter(placed, group)[: shapes.own_rows(rows, group, zigzag)].to(x.dtype)


class Gathered:
    """Keys and values of all tokens, and the parts of the attention of own ones to them."""

    def __init__(self, q, k, v, group, causal, zigzag, rows, cu_seqlens):
        self.group = group = find_group(group)
        rows = shapes.all_rows(q, rows, group, zigzag)
        lengths = shapes.lengths_of(cu_seqlens, rows)
        self.parts = parts_of(shapes.own_tokens(rows, group, zigzag), rows, causal, lengths)
        self.k, self.v = (gather_tokens(x, rows, group, zigzag) for x in (k, v))


def ring_attention(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    at = Gathered(q, k, v, group, causal, zigzag, rows, cu_seqlens)
    return attention.attend(q, at.k, at.v, head_dim, at.parts).contiguous()


def ring_attention_with_lse(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    """The result. No log-sum-exp is kept, because ring_gradients() attends again."""
    out = ring_attention(q, k, v, group, head_dim, causal, zigzag, rows, cu_seqlens)
    return out, q.new_empty(0, q.shape[1] // head_dim, dtype=shapes.wide(q.dtype))


def attend_with_lse(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    """The result, and the log-sum-exp that attention-backward takes."""
    at = Gathered(q, k, v, group, causal, zigzag, rows, cu_seqlens)
    out = attention.attend(q, at.k, at.v, head_dim, at.parts).contiguous()
    return out, attention.log_sum_exp(q, at.k, head_dim, at.parts)


def ring_gradients(grad, q, k, v, out, lse, group, head_dim, causal, zigzag, rows, cu_seqlens=None):
    """Gradients of q, k and v. Attends again: PyTorch's attention takes no log-sum-exp of ours."""
    at = Gathered(q, k, v, group, causal, zigzag, rows, cu_seqlens)
    _, dq, dk, dv = attention.gradients(grad, q, at.k, at.v, head_dim, at.parts)
    return dq, scatter_tokens(dk, at.group, zigzag), scatter_tokens(dv, at.group, zigzag)


def mlp(x, up, down, group, activation=None, rows=None):
    _, (hidden,) = all_gather_gemm(x, [up], group, rows)
    return gemm_reduce_scatter(activate(hidden, activation), down, group)
