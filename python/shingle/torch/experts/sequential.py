"""Experts as permutations, c10d's collectives and grouped products, one after the other."""

import torch

from .. import shapes
from ..sequential import activate

GROUPED_ALIGNMENT = 16  # bytes: of what torch._grouped_mm reads


def takes_grouped_mm(*tensors):
    """True if torch._grouped_mm serves these matrices."""
    return tensors[0].dtype == torch.bfloat16 and all(
        x.is_cuda and min(x.stride()[-2:]) == 1 and x.data_ptr() % GROUPED_ALIGNMENT == 0
        and max(x.stride()[-2:]) * x.element_size() % GROUPED_ALIGNMENT == 0
        for x in tensors
    )  # fmt: skip


def multiply(rows, w, layout):
    """Rows [received, k], sorted by expert, times wᵀ of their experts; w is [experts, n, k]."""
    wt = w.transpose(-2, -1)
    if rows.shape[0] > 0 and takes_grouped_mm(rows, wt):
        return torch._grouped_mm(rows, wt, offs=layout.offsets)
    out, begin = rows.new_empty(rows.shape[0], w.shape[1]), 0
    for end, weight in zip(layout.ends, wt):
        torch.mm(rows[begin:end], weight, out=out[begin:end])
        begin = end
    return out


def weight_gradient(grad, rows, w, layout):
    """gradᵀ·rows of each expert, [experts, n, k]: contiguous like w, or else transposed."""
    if w.stride(-1) == 1:
        return products_by_expert(grad, rows, w, layout)
    return products_by_expert(rows, grad, w.transpose(-2, -1), layout).transpose(-2, -1)


def products_by_expert(grad, rows, w, layout):
    """gradᵀ·rows of each expert, contiguous, in the shape of w."""
    if rows.shape[0] > 0 and takes_grouped_mm(grad, rows):
        out = torch._grouped_mm(grad.t(), rows, offs=layout.offsets)
        empty = [expert for expert, (a, b) in enumerate(zip([0, *layout.ends], layout.ends)) if a == b]
        if empty:  # on some GPUs PyTorch leaves them as they are: pytorch/pytorch#172439
            out[empty] = 0
        return out
    out, begin = w.new_empty(w.shape), 0
    for end, of_expert in zip(layout.ends, out):
        torch.mm(grad[begin:end].t(), rows[begin:end], out=of_expert)
        begin = end
    return out


def weighted_sum(products, topk_weights):
    """Products of choices [topk, tokens, columns] times weights [tokens, topk], summed in their order in fp32."""
    out = products.new_zeros(products.shape[1:], dtype=shapes.wide(products.dtype))
    for product, weights in zip(products, topk_weights.t()):
        out += product * weights[:, None]
    return out.to(products.dtype)


def dispatch(x, w, layout):
    """Tokens to their experts, times wᵀ there: [received, n], sorted by expert."""
    return multiply(layout.send_tokens(x)(), w, layout)


def combine(rows, w, topk_weights, layout):
    """Rows of experts times wᵀ, back to their tokens and summed with the weights."""
    return layout.sum_choices(multiply(rows, w, layout), topk_weights)


def moe(x, w_up, w_down, topk_weights, layout, activation):
    return combine(activate(dispatch(x, w_up, layout), activation), w_down, topk_weights, layout)
