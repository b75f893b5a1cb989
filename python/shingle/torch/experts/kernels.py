"""What the ops call. `way`: the module whose dispatch, combine and moe they take, `sequential` or `overlapped`."""

import torch

from ...errors import InvalidArgument
from .. import gradients, outputs, shapes
from ..groups import find_group
from ..sequential import activate
from .routing import Layout, exchange
from .sequential import multiply, weight_gradient
from .slices import Slices
from .slots import ReplicatedSlots, SlicedSlots, Slots

ROWS_AT_ONCE = 4096  # whose hidden layer is in fp32


def moe(way, x, w_up, w_down, topk_ids, topk_weights, group, activation, tensor_parallel):
    """The result, and the routing that backward takes.

    Numbers of tokens differ between ranks, and nobody knows the ids of others. So a rank whose arguments are wrong
    tells the others in the exchange, instead of leaving them to wait for it.
    """
    at, given = find_group(group), (x, w_up, w_down, topk_ids, topk_weights)
    device = next((of.device for of in given if of.is_cuda), torch.device("cpu"))
    error, terms, experts = None, "", 0
    try:
        outputs.moe(*given, group, activation, tensor_parallel)
        experts = shapes.experts_of_all(w_up, at, tensor_parallel)
        terms = (
            f"x [tokens, {x.shape[1]}] of {x.dtype}, w_up {tuple(w_up.shape)}, w_down {tuple(w_down.shape)}, "
            f"topk_ids [tokens, {topk_ids.shape[1]}], activation = {activation!r}, "
            f"tensor_parallel = {tensor_parallel}"
        )
    except InvalidArgument as wrong:
        error = wrong
    routing = exchange(topk_ids, experts, at, terms, device, error)
    layout = layout_of(routing, topk_ids.shape[1], experts, at, x.device, tensor_parallel)
    return way.moe(x, w_up, w_down, topk_weights, layout, activation), routing


def layout_of(routing, topk, experts, group, device, tensor_parallel):
    return (Slices if tensor_parallel else Layout)(routing, topk, experts, group, device)


def moe_with_capacity(
    way, x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens=None, tensor_parallel=False,
    replicated=False,
):  # fmt: skip
    """The result, and Slots.dropped. The device routes, and nothing waits for it.

    So ranks do not tell each other of wrong arguments. Ids that are no expert are counted.
    """
    out = outputs.moe_with_capacity(
        x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens, tensor_parallel, replicated
    )[0]
    slots = slots_of(x, w_up, topk_ids, group, capacity, max_tokens, tensor_parallel, replicated)
    if slots.capacity == 0:  # no rank has tokens
        return out, slots.dropped
    return way.moe(x, w_up, w_down, topk_weights, slots, activation), slots.dropped


def slots_of(x, w_up, topk_ids, group, capacity, max_tokens, tensor_parallel, replicated):
    at, most = find_group(group), x.shape[0] if max_tokens is None else max_tokens
    experts = shapes.experts_of_all(w_up, at, tensor_parallel)
    kind = ReplicatedSlots if replicated else SlicedSlots if tensor_parallel else Slots
    return kind(topk_ids, experts, at, capacity, most)


def moe_gradients(
    way, grad, x, w_up, w_down, topk_weights, routing, group, activation, tensor_parallel, wanted
):
    """gradients_of() of a routing of the host."""
    outs = outputs.moe_gradients(
        grad, x, w_up, w_down, topk_weights, routing, group, activation, tensor_parallel, wanted
    )
    at = find_group(group)
    experts = shapes.experts_of_all(w_up, at, tensor_parallel)
    layout = layout_of(routing, topk_weights.shape[1], experts, at, x.device, tensor_parallel)
    return gradients_of(way, outs, grad, x, w_up, w_down, topk_weights, layout, activation, wanted)


def moe_with_capacity_gradients(
    way, grad, x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens, tensor_parallel,
    replicated, wanted,
):  # fmt: skip
    """gradients_of() of a routing of the device, which gives the choices the same slots again."""
    outs = outputs.moe_with_capacity_gradients(
        grad, x, w_up, w_down, topk_ids, topk_weights, group, activation, capacity, max_tokens, tensor_parallel,
        replicated, wanted,
    )  # fmt: skip
    slots = slots_of(x, w_up, topk_ids, group, capacity, max_tokens, tensor_parallel, replicated)
    if slots.capacity == 0:
        return tuple(out.zero_() for out in outs)
    return gradients_of(way, outs, grad, x, w_up, w_down, topk_weights, slots, activation, wanted)


def gradients_of(way, outs, grad, x, w_up, w_down, topk_weights, layout, activation, wanted):
    """Gradients of x, w_up, w_down and topk_weights; those that are not wanted are empty, as in `outs`.

    With row r = (token t, choice of weight p, expert e), u = x_t·Upᵀ, h = act(u), q = g_t·Down and g the gradient of
    the result:

        dDown_e = Σ_r gᵀ (p·h)   du = act'(u)·p·q   dUp_e = Σ_r duᵀ x_t   dp = <h, q>   dx_t = Σ_choices du·Up

    u and q are dispatches of x and of g, dx is a combine with weights of 1. dp = <y, g_t> for the product y = h·Downᵀ,
    but <h, q> needs no y: one number a row travels back.

    Kept from forward are its inputs and the routing. u is computed again, and x sent again: forward is one plan, which
    leaves its rows in staging memory that the next call overwrites. To keep them takes topk·(hidden + 2·inner) elements
    a token and layer. The gradients of weights need the rows of x and of g themselves, which a dispatch does not leave.
    Then c10d sends the rows, once, and both products multiply these. The first product overlaps the second exchange.
    The mechanisms run after that, since they must not run beside NCCL. Sums are in a fixed order,
    but for those of c10d's reduce-scatter.

    With a capacity, rows of empty slots are zeros and add nothing. Dropped choices have no rows. With slices of experts
    h and q are columns of a rank, so dx and dp are also summed over the ranks. Where all ranks have the same tokens,
    nothing is sent, and these sums are whole on all ranks.
    """
    down = w_down.transpose(-2, -1)
    wants_x, wants_up, wants_down, wants_weights = wanted
    sent_x = layout.send_tokens(x) if wants_up else None
    sent_grad = layout.send_tokens(grad) if wants_down else None
    weights, u, q = layout.send_weights(topk_weights), None, None
    if wants_up:
        rows = sent_x()
        u = multiply(rows, w_up, layout)
    if wants_down:
        grad_rows = sent_grad()
        q = multiply(grad_rows, down, layout)
    u = way.dispatch(x, w_up, layout) if u is None else u
    q = way.dispatch(grad, down, layout) if q is None else q
    active, du, products = hidden_gradients(u, q, weights, activation)
    dx, d_up, d_down, d_weights = outs
    if wants_x:
        dx = way.combine(du, w_up.transpose(-2, -1), torch.ones_like(topk_weights), layout)
    if wants_up:
        d_up = weight_gradient(du, rows, w_up, layout)
    if wants_down:
        d_down = weight_gradient(grad_rows, active, w_down, layout)
    if wants_weights:
        d_weights.copy_(layout.give_back(products)[..., 0].t())
    return dx, d_up, d_down, d_weights


def hidden_gradients(u, q, weights, activation):
    """(weights · h, the gradient of u, <h, q>) for h = activation(u), computed in fp32 and rounded once.

    u: [rows, n]. q: [rows, columns of h], the gradient of h for a weight of 1. weights: [rows, 1].
    """
    active, du, products = torch.empty_like(q), torch.empty_like(u), torch.empty_like(weights)
    wide = shapes.wide(u.dtype)
    for first in range(0, u.shape[0], ROWS_AT_ONCE):
        these = slice(first, first + ROWS_AT_ONCE)
        some_u, some_q, some_weights = u[these].to(wide), q[these].to(wide), weights[these]
        h = activate(some_u, activation)
        active[these] = h * some_weights
        du[these] = gradients.activation(some_q * some_weights, some_u, activation)
        products[these] = (h * some_q).sum(1, keepdim=True)
    return active, du, products
