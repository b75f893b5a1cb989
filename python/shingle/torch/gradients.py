"""Gradients of the ops. The backward of an op is another op, so communication overlaps there too.

An output that every rank has whole (gemm_all_reduce) has the same gradient on every rank, as in Megatron. Gradients of
replicated vectors (bias, norm_weight, residual) are then whole on every rank.

Each pair of functions is the setup_context and backward of torch.library.register_autograd.
"""

import math

import torch
import torch.nn.functional as F

from ..errors import Unsupported
from . import sequential, shapes
from .groups import find_group
from .sequential import joined, weight_gradient

ops = torch.ops.shingle


def wanted(ctx, index):
    """True if input `index` needs a gradient. Trailing inputs that have their defaults are not passed at all."""
    return index < len(ctx.needs_input_grad) and ctx.needs_input_grad[index]


def result(ctx, *gradients):
    """The gradients, as many as inputs were passed."""
    return (*gradients, *[None] * len(ctx.needs_input_grad))[: len(ctx.needs_input_grad)]


def setup_gemm(ctx, inputs, output):
    x, w, ctx.group, *_ = inputs
    ctx.save_for_backward(x, w)


def setup_gemm_reduce_scatter(ctx, inputs, output):
    if inputs[4] is not None:
        raise Unsupported(
            f"gemm_reduce_scatter: an input requires grad, but activation = {inputs[4]!r} has no gradient; "
            "apply the activation to the result"
        )
    setup_gemm(ctx, inputs, output)


def gemm_reduce_scatter(ctx, grad):
    x, w = ctx.saved_tensors
    wants_dx, wants_dw, wants_db = (wanted(ctx, index) for index in (0, 1, 3))
    if not wants_dx:
        dw, db = sequential.gradients_of_weight(ops.all_gather(grad, ctx.group, x.shape[0]), x, w, wants_db)
        return result(ctx, None, dw if wants_dw else None, None, db if wants_db else None)
    if not wants_dw and not wants_db:
        _, (dx,) = ops.all_gather_gemm(grad, [w.t()], ctx.group, x.shape[0])
        return result(ctx, dx)
    dx, dw, db = ops.gather_gradients(grad, x, w, ctx.group, wants_db)
    return result(ctx, dx, dw if wants_dw else None, None, db if wants_db else None)


def replicated_gradients(ctx, grad, x, w):
    """Gradients of x and w where every rank has the gradient of the whole sum."""
    return grad @ w if wanted(ctx, 0) else None, weight_gradient(grad, x, w) if wanted(ctx, 1) else None


def gemm_all_reduce(ctx, grad):
    dx, dw = replicated_gradients(ctx, grad, *ctx.saved_tensors)
    return result(ctx, dx, dw, None, grad.sum(0) if wanted(ctx, 3) else None)


def replicated_gemm(ctx, grad):
    x, w = ctx.saved_tensors
    dx = ops.gemm_all_reduce(grad, w.t(), ctx.group) if wanted(ctx, 0) else None
    return result(ctx, dx, weight_gradient(grad, x, w) if wanted(ctx, 1) else None)


def setup_gemm_all_reduce_norm(ctx, inputs, output):
    x, w, _, norm_weight, ctx.group, _, ctx.eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, w, norm_weight, output[1])


def gemm_all_reduce_norm(ctx, d_normed, d_sum):
    x, w, norm_weight, total = ctx.saved_tensors
    if d_normed is None and d_sum is None:
        return result(ctx)
    d_norm_weight = None
    if d_normed is not None:
        d_total, d_norm_weight = rms_norm(d_normed, total, norm_weight, ctx.eps)
        d_sum = d_total if d_sum is None else d_sum + d_total
    dx, dw = replicated_gradients(ctx, d_sum, x, w)
    return result(ctx, dx, dw, d_sum, d_norm_weight, None, d_sum.sum(0) if wanted(ctx, 5) else None)


def rms_norm(grad, x, weight, eps):
    """Gradients of x and of weight for y = x / sqrt(mean(x²) + eps) · weight, computed in fp32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    grad, scale = grad.to(wide), torch.rsqrt(x.to(wide).square().mean(-1, keepdim=True) + eps)
    unit = x.to(wide) * scale
    d_unit = grad * weight.to(wide)
    dx = scale * (d_unit - unit * (d_unit * unit).mean(-1, keepdim=True))
    return dx.to(x.dtype), (grad * unit).sum(0).to(weight.dtype)


def setup_all_gather_gemm(ctx, inputs, output):
    x, ws, ctx.group, rows, ctx.keeps = inputs
    ctx.rows = shapes.all_rows(x, rows, find_group(ctx.group))
    ctx.set_materialize_grads(False)
    # The gathered rows are kept only if the caller has them anyway. Else backward gathers again.
    ctx.save_for_backward(output[0] if ctx.keeps else x, *ws)


def all_gather_gemm(ctx, d_gathered, d_outs):
    kept, *ws = ctx.saved_tensors
    d_outs = [kept.new_zeros(ctx.rows, w.shape[0]) if d is None else d for d, w in zip(d_outs, ws)]
    dx, dws = None, [None] * len(ws)
    if wanted(ctx, 0) and any(ctx.needs_input_grad[1]) and not ctx.keeps:
        dx, dws = ops.scatter_gradients(d_outs, kept, ws, ctx.group)
        return result(ctx, dx, [dw if need else None for dw, need in zip(dws, ctx.needs_input_grad[1])])
    if wanted(ctx, 0):
        dx = ops.gemm_reduce_scatter(joined(d_outs, 1), joined(ws, 0).t(), ctx.group)
        if ctx.keeps and d_gathered is not None:
            dx = dx + ops.reduce_scatter(d_gathered, ctx.group)
    if any(ctx.needs_input_grad[1]):
        gathered = kept if ctx.keeps else ops.all_gather(kept, ctx.group, ctx.rows)
        needs = ctx.needs_input_grad[1]
        dws = [weight_gradient(d, gathered, w) if need else None for d, w, need in zip(d_outs, ws, needs)]
    return result(ctx, dx, dws)


def setup_all_to_all(ctx, inputs, output):
    x, w, ctx.group, ctx.splits = inputs
    ctx.save_for_backward(x, w)


def returned(splits):
    """The splits of the way back: what a rank received it sends."""
    size = math.isqrt(len(splits))
    return [splits[to * size + at] for at in range(size) for to in range(size)]


def all_to_all_gemm(ctx, grad):
    x, w = ctx.saved_tensors
    dx = ops.gemm_all_to_all(grad, w.t(), ctx.group, returned(ctx.splits)) if wanted(ctx, 0) else None
    dw = weight_gradient(grad, ops.all_to_all(x, ctx.group, ctx.splits), w) if wanted(ctx, 1) else None
    return result(ctx, dx, dw)


def gemm_all_to_all(ctx, grad):
    x, w = ctx.saved_tensors
    dx = ops.all_to_all_gemm(grad, w.t(), ctx.group, returned(ctx.splits)) if wanted(ctx, 0) else None
    back = ops.all_to_all(grad, ctx.group, returned(ctx.splits)) if wanted(ctx, 1) else None
    return result(ctx, dx, weight_gradient(back, x, w) if wanted(ctx, 1) else None)


def setup_attention_reduce_scatter(ctx, inputs, output):
    q, k, v, w, ctx.group, ctx.head_dim, ctx.causal, cu_seqlens = inputs
    ctx.save_for_backward(q, k, v, w, cu_seqlens)


def attention_reduce_scatter(ctx, grad):
    *qkv, w, cu_seqlens = ctx.saved_tensors
    gathered, (d_attended,) = ops.all_gather_gemm(grad, [w.t()], ctx.group, qkv[0].shape[0], wanted(ctx, 3))
    attended, *d_qkv = ops.attention_gradients(d_attended, *qkv, ctx.head_dim, ctx.causal, cu_seqlens)
    return result(ctx, *d_qkv, weight_gradient(gathered, attended, w) if wanted(ctx, 3) else None)


def setup_attention(ctx, inputs, output):
    """Of ulysses_attention and ring_attention."""
    q, k, v, ctx.group, ctx.head_dim, *ctx.options, cu_seqlens = inputs
    ctx.save_for_backward(q, k, v, cu_seqlens)


def ulysses_attention(ctx, grad):
    *qkv, cu_seqlens = ctx.saved_tensors
    return result(ctx, *ops.ulysses_gradients(grad, *qkv, ctx.group, ctx.head_dim, *ctx.options, cu_seqlens))


def ring_attention(ctx, grad):
    *qkv, cu_seqlens = ctx.saved_tensors
    return result(ctx, *ops.ring_gradients(grad, *qkv, None, None, ctx.group, ctx.head_dim, *ctx.options, cu_seqlens))


def setup_ring_attention_with_lse(ctx, inputs, output):
    q, k, v, ctx.group, ctx.head_dim, *ctx.options, cu_seqlens = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    # Without it backward attends again. The rule, not the size of lse, decides: a rank may have no tokens.
    kept = (out, lse) if shapes.backward_takes_lse(q, ctx.head_dim) else (None, None)
    ctx.save_for_backward(q, k, v, *kept, cu_seqlens)


def ring_attention_with_lse(ctx, grad, _):
    *saved, cu_seqlens = ctx.saved_tensors
    return result(ctx, *ops.ring_gradients(grad, *saved, ctx.group, ctx.head_dim, *ctx.options, cu_seqlens))


def setup_mlp(ctx, inputs, output):
    x, up, down, ctx.group, ctx.activation, rows = inputs
    ctx.rows = shapes.all_rows(x, rows, find_group(ctx.group))
    ctx.save_for_backward(x, up, down)


def mlp(ctx, grad):
    """Computes the first product again instead of keeping it."""
    x, up, down = ctx.saved_tensors
    gathered, (hidden,) = ops.all_gather_gemm(x, [up], ctx.group, ctx.rows, wanted(ctx, 1))
    gathered_grad, (d_active,) = ops.all_gather_gemm(grad, [down.t()], ctx.group, ctx.rows, wanted(ctx, 2))
    dw = weight_gradient(gathered_grad, sequential.activate(hidden, ctx.activation), down) if wanted(ctx, 2) else None
    d_hidden = activation(d_active, hidden, ctx.activation)
    dx = ops.gemm_reduce_scatter(d_hidden, up.t(), ctx.group) if wanted(ctx, 0) else None
    return result(ctx, dx, weight_gradient(d_hidden, gathered, up) if wanted(ctx, 1) else None, dw)


def setup_moe(ctx, inputs, output):
    x, w_up, w_down, _, topk_weights, ctx.group, *ctx.options = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, w_up, w_down, topk_weights, output[1])


def moe(ctx, grad, _):
    wants = [wanted(ctx, index) for index in (0, 1, 2, 4)]
    found = ops.moe_gradients(grad, *ctx.saved_tensors, ctx.group, *ctx.options, wants)
    dx, d_up, d_down, d_weights = (gradient if want else None for gradient, want in zip(found, wants))
    return result(ctx, dx, d_up, d_down, None, d_weights)


def setup_moe_with_capacity(ctx, inputs, output):
    tensors, ctx.options = inputs[:5], inputs[5:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors)


def moe_with_capacity(ctx, grad, _):
    wants = [wanted(ctx, index) for index in (0, 1, 2, 4)]
    found = ops.moe_with_capacity_gradients(grad, *ctx.saved_tensors, *ctx.options, wants)
    dx, d_up, d_down, d_weights = (gradient if want else None for gradient, want in zip(found, wants))
    return result(ctx, dx, d_up, d_down, None, d_weights)


def activation(grad, x, name):
    """The gradient of sequential.activate(x, name)."""
    aten = torch.ops.aten
    if name is None:
        return grad
    if name == "relu":
        return aten.threshold_backward(grad, x, 0)
    if name == "gelu":
        return aten.gelu_backward(grad, x)
    if name == "silu":
        return aten.silu_backward(grad, x)
    gate, up = x.chunk(2, dim=-1)
    return torch.cat([aten.silu_backward(grad * up, gate), grad * F.silu(gate)], dim=-1)
