"""Experts as permutations, c10d's all-to-all and grouped products, one after the other."""

import torch

from .. import shapes
from ..sequential import activate, all_to_all

GROUPED_ALIGNMENT = 16  # bytes: of what torch._grouped_mm reads


def send(rows, index, layout, async_op=False):
    """Rows of choices to the experts. index: the row that each leaving choice takes.

    Returns a function that waits for the rows [received, columns] and returns them, sorted by expert.
    """
    arrived, work = all_to_all(layout.pick(rows, index), layout.table, layout.group, async_op=True)
    if not async_op:
        work.wait()

    def wait():
        work.wait()
        return arrived[layout.by_expert]

    return wait


def send_tokens(x, layout, async_op=False):
    """Tokens [tokens, columns] to the experts that they chose. Returns what send() returns."""
    return send(x, layout.leaving_tokens, layout, async_op)


def send_weights(topk_weights, layout):
    """The weight of each row that the experts received, [received, 1]."""
    return send(topk_weights.t().reshape(-1, 1), layout.leaving, layout)()


def give_back(rows, layout):
    """Rows of experts [received, columns] to their tokens: [topk, tokens, columns]; zeros for dropped choices."""
    returned = all_to_all(rows[layout.by_source], layout.returned, layout.group)
    return layout.pick(returned, layout.by_choice).view(layout.topk, layout.tokens, rows.shape[1])


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
    """gradᵀ·rows of each expert, [experts, n, k], in the strides of w."""
    if w.stride(-1) != 1:
        return weight_gradient(rows, grad, w.transpose(-2, -1), layout).transpose(-2, -1)
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


def dispatch(x, w, layout):
    """Tokens to their experts, times wᵀ there: [received, n], sorted by expert."""
    return multiply(send_tokens(x, layout)(), w, layout)


def combine(rows, w, topk_weights, layout):
    """Rows of experts times wᵀ, back to their tokens, summed with the weights in the order of choices, in fp32."""
    products = give_back(multiply(rows, w, layout), layout)
    out = products.new_zeros(products.shape[1:], dtype=shapes.wide(rows.dtype))
    for product, weights in zip(products, layout.kept(topk_weights).t()):
        out += product * weights[:, None]
    return out.to(rows.dtype)


def moe(x, w_up, w_down, topk_weights, layout, activation):
    return combine(activate(dispatch(x, w_up, layout), activation), w_down, topk_weights, layout)
