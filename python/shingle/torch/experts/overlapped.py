"""Experts by the context of the group, or as mm + c10d where that is faster. Functions as in `sequential`."""

from .. import overlapped
from ..overlapped import rows_argument
from . import sequential

ALIGNMENT = 8  # elements: GPU kernels load rows in bulk


def shape_of(op, x, w, layout, n, inner=0, activation=None):
    """The Shape of a call with (first) weights w. Its dtype is None if no operator serves it."""
    shape = overlapped.shape_of(
        op, n, w.shape[2], x.dtype, layout.group.size, overlapped.is_transposed(w), inner=inner,
        experts=(layout.experts, layout.topk), capacity=layout.declared_capacity, activation=activation,
    )  # fmt: skip
    if x.is_cuda and (shape.dtype == "f32" or any(size % ALIGNMENT != 0 for size in (n, shape.k, inner))):
        return shape._replace(dtype=None)
    return shape


def chosen(op, x, w, layout, n, inner=0, activation=None):
    """The operator that serves a call; None: it runs as mm + c10d. Counts the call."""
    shape = shape_of(op, x, w, layout, n, inner, activation)
    return overlapped.chosen(layout.group, shape, layout.most_tokens, x.device)


def weights_argument(w, transposed):
    """Weights [experts, n, k], one below the other."""
    return rows_argument((w if transposed else w.transpose(-2, -1)).flatten(0, 1))


def enqueue(shape, layout, out, rows, weights, *topk_weights):
    """Enqueues a call, and returns its result."""
    operands = [
        rows_argument(rows), *(weights_argument(w, shape.transpose_b) for w in weights),
        *map(rows_argument, topk_weights), rows_argument(out), *map(rows_argument, layout.matrices(shape.op)),
    ]  # fmt: skip
    overlapped.enqueue(layout.group, shape, layout.most_tokens, rows.device, operands, layout.for_context)
    return out


def dispatch(x, w, layout):
    op = layout.OPS["dispatch"]  # None: no rows travel, so there is nothing to overlap
    shape = op and chosen(op, x, w, layout, w.shape[1])
    if shape is None:
        return sequential.dispatch(x, w, layout)
    return enqueue(shape, layout, layout.new_rows(x, w.shape[1]), x, [w])


def combine(rows, w, topk_weights, layout):
    shape = chosen(layout.OPS["combine"], rows, w, layout, w.shape[1])
    if shape is None:
        return sequential.combine(rows, w, topk_weights, layout)
    return enqueue(shape, layout, rows.new_empty(layout.tokens, w.shape[1]), rows, [w], topk_weights)


def moe(x, w_up, w_down, topk_weights, layout, activation):
    _, n, inner = w_down.shape
    shape = chosen(layout.OPS["moe"], x, w_up, layout, n, inner, activation)
    if shape is None:
        return sequential.moe(x, w_up, w_down, topk_weights, layout, activation)
    return enqueue(shape, layout, x.new_empty(layout.tokens, n), x, [w_up, w_down], topk_weights)


def overlaps_moe(x, w_up, w_down, layout, activation):
    """True if moe() would not run as mm + c10d. Counts nothing."""
    shape = shape_of(layout.OPS["moe"], x, w_up, layout, *w_down.shape[1:], activation)
    most = layout.most_tokens
    return shape.dtype is not None and overlapped.operator_for(layout.group, shape, most, x.device) is not None
