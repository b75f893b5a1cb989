"""Checks of the arguments and empty outputs of each op: the fake kernels, and the first step of the real ones."""

import torch

from . import shapes
from .groups import find_group


def all_gather(x, group, rows=None):
    return x.new_empty(shapes.all_rows(x, rows, find_group(group)), x.shape[1])


def reduce_scatter(x, group):
    return x.new_empty(shapes.own_rows(x.shape[0], find_group(group)), x.shape[1])


def all_to_all(x, group, splits):
    group = find_group(group)
    table = shapes.split_table(splits, group)
    shapes.check_splits(x, table, group)
    return x.new_empty(shapes.received_rows(table, group), x.shape[1])


def gemm_reduce_scatter(x, w, group, bias=None, activation=None):
    shapes.check_gemm(x, w)
    shapes.check_row(x, bias, w.shape[0], "bias")
    shapes.check_activation(activation, w)
    return x.new_empty(shapes.own_rows(x.shape[0], find_group(group)), shapes.out_columns(w, activation))


def gemm_all_reduce(x, w, group, bias=None):
    shapes.check_gemm(x, w)
    shapes.check_row(x, bias, w.shape[0], "bias")
    find_group(group)
    return x.new_empty(x.shape[0], w.shape[0])


def gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias=None, eps=1e-5):
    out = gemm_all_reduce(x, w, group, bias)
    shapes.check_matrix(x, residual, out.shape, "residual")
    shapes.check_row(x, norm_weight, w.shape[0], "norm_weight")
    return out, x.new_empty(out.shape)


def all_gather_gemm(x, ws, group, rows=None, return_gathered=False):
    if not ws:
        raise shapes.InvalidArgument("ws is empty; expected at least one weight")
    for i, w in enumerate(ws):
        shapes.check_gemm(x, w, f"ws[{i}]")
    rows = shapes.all_rows(x, rows, find_group(group))
    return x.new_empty(rows if return_gathered else 0, x.shape[1]), [x.new_empty(rows, w.shape[0]) for w in ws]


def like_weight(w):
    if w.stride(-1) == 1:
        return w.new_empty(w.shape)
    return w.transpose(-2, -1).new_empty(w.transpose(-2, -1).shape).transpose(-2, -1)


def gather_gradients(grad, x, w, group, bias):
    shapes.check_gemm(x, w)
    all_gather(grad, group, x.shape[0])
    return x.new_empty(x.shape), like_weight(w), grad.new_empty(grad.shape[1] if bias else 0)


def scatter_gradients(grads, x, ws, group):
    for i, (grad, w) in enumerate(zip(grads, ws)):
        shapes.check_gemm(grad, w.t(), f"ws[{i}].t()")
    all_gather(x, group, grads[0].shape[0])
    return x.new_empty(x.shape), [like_weight(w) for w in ws]


def replicated_gemm(x, w, group):
    return gemm_all_reduce(x, w, group)


def all_to_all_gemm(x, w, group, splits):
    shapes.check_gemm(x, w)
    return x.new_empty(all_to_all(x, group, splits).shape[0], w.shape[0])


def gemm_all_to_all(x, w, group, splits):
    return all_to_all_gemm(x, w, group, splits)


def attention_gradients(grad, q, k, v, head_dim, causal, cu_seqlens=None):
    shapes.check_attention(q, k, v, head_dim, 1)
    shapes.check_cu_seqlens(cu_seqlens)
    shapes.check_matrix(q, grad, q.shape, "grad")
    return q.new_empty(q.shape), q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def attention_reduce_scatter(q, k, v, w, group, head_dim, causal=False, cu_seqlens=None):
    shapes.check_attention(q, k, v, head_dim, 1)
    shapes.check_cu_seqlens(cu_seqlens)
    return gemm_reduce_scatter(q, w, group)


def ulysses_attention(q, k, v, group, head_dim, causal=False, rows=None, cu_seqlens=None):
    group = find_group(group)
    shapes.check_attention(q, k, v, head_dim, group.size)
    shapes.check_cu_seqlens(cu_seqlens)
    shapes.all_rows(q, rows, group)
    return q.new_empty(q.shape)


def ulysses_gradients(grad, q, k, v, group, head_dim, causal, rows, cu_seqlens=None):
    ulysses_attention(q, k, v, group, head_dim, causal, rows, cu_seqlens)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def ring_attention(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    shapes.check_attention(q, k, v, head_dim, 1)
    shapes.check_cu_seqlens(cu_seqlens)
    shapes.all_rows(q, rows, find_group(group), zigzag)
    return q.new_empty(q.shape)


def ring_attention_with_lse(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    out = ring_attention(q, k, v, group, head_dim, causal, zigzag, rows, cu_seqlens)
    return out, log_sum_exp(q, head_dim)


def log_sum_exp(q, head_dim):
    """[own tokens, heads]; without tokens if no backward takes it."""
    kept = q.shape[0] if shapes.backward_takes_lse(q, head_dim) else 0
    return q.new_empty(kept, q.shape[1] // head_dim, dtype=shapes.wide(q.dtype))


def ring_gradients(grad, q, k, v, out, lse, group, head_dim, causal, zigzag, rows, cu_seqlens=None):
    ring_attention(q, k, v, group, head_dim, causal, zigzag, rows, cu_seqlens)
    for name, x in (("grad", grad), ("out", out)):
        if x is not None:
            shapes.check_matrix(q, x, q.shape, name)
    if lse is not None:
        shapes.check_lse(q, lse, head_dim)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def mlp(x, up, down, group, activation=None, rows=None):
    shapes.check_gemm(x, up, "up")
    shapes.check_activation(activation, up, "up")
    shapes.check_weight(x, down, "down", shapes.out_columns(up, activation))
    shapes.all_rows(x, rows, find_group(group))
    return x.new_empty(x.shape[0], down.shape[0])


def moe(x, w_up, w_down, topk_ids, topk_weights, group, activation, tensor_parallel=False):
    """The result alone. The size of the routing, the second one, depends on the tokens of all ranks."""
    shapes.check_experts(x, w_up, w_down, activation)
    shapes.check_choices(x, topk_ids, topk_weights, shapes.experts_of_all(w_up, find_group(group), tensor_parallel))
    return x.new_empty(x.shape[0], w_down.shape[1])


def moe_with_capacity(x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens=None,
                      tensor_parallel=False, replicated=False):  # fmt: skip
    shapes.check_replicated(replicated, tensor_parallel, capacity)
    out = moe(x, w_up, w_down, topk_ids, topk_weights, group, activation, tensor_parallel)
    experts = shapes.experts_of_all(w_up, find_group(group), tensor_parallel)
    shapes.check_capacity(capacity, max_tokens, experts, x.shape[0])
    return out, x.new_empty(2, dtype=torch.int32)


def moe_with_capacity_gradients(
    grad, x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens, tensor_parallel, replicated,
    wanted,
):  # fmt: skip
    given = x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens, tensor_parallel
    moe_with_capacity(*given, replicated)
    return moe_gradients(grad, x, w_up, w_down, topk_weights, None, group, activation, tensor_parallel, wanted)


def moe_gradients(grad, x, w_up, w_down, topk_weights, routing, group, activation, tensor_parallel, wanted):
    shapes.check_experts(x, w_up, w_down, activation)
    shapes.check_matrix(x, grad, (x.shape[0], w_down.shape[1]), "grad")
    found = zip(wanted, (x, w_up, w_down, topk_weights))
    return tuple(like_weight(of) if want else of.new_empty(0) for want, of in found)
