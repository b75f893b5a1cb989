"""CUDA kernels of the ops: one call of the group's context, or mm + c10d where that is faster.

Which of them runs depends on the shape, on m, on dtypes and on tables that are equal on all ranks.
"""

import functools

import torch

from ..context import Routing
from . import contexts, outputs, sequential, shapes
from .counters import counts
from .crossover import Shape, table
from .groups import find_group

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def dense(x):
    """x with consecutive elements in each row. Rows may have gaps."""
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def argument(matrix):
    """A matrix or a vector as (address, rows, row stride)."""
    return (matrix.data_ptr(), matrix.shape[0], matrix.stride(0)) if matrix.dim() == 2 else (matrix.data_ptr(), 1, 0)


def is_transposed(w):
    """True if a weight [n, k] is passed as n×k, false as k×n (w is then a transposed view)."""
    return w.stride(1) == 1 or w.stride(0) != 1


def stored(w, transposed):
    return dense(w if transposed else w.t())


def overlaps(group, shape, m):
    """True if the call is overlapped; false: it runs as mm + c10d. Counts and records the call."""
    if shape.dtype is None or m == 0:
        return False
    if used is not None:
        used[group, shape] = None
    choice = table.overlaps(shape, m)
    counts[("overlapped." if choice else "sequential.") + shape.op] += 1
    return choice


# Shapes of calls in order of first use, while shingle.torch.warmup records them.
used: dict | None = None


def enqueue(group, shape, m, tensors, routing=None):
    """One call on the current stream of the tensors' device, which autograd's threads may have to select."""
    device = tensors[0].device.index
    with torch.cuda.device(device):
        call = contexts.find_call(group, shape, m, device)
        call(m, [argument(t) for t in tensors], (torch.cuda.current_stream().cuda_stream,), routing)


def gemm(op, x, w, group, **fields):
    """The Shape of an operator of one product."""
    return Shape(op, *w.shape, DTYPES.get(x.dtype), group.size, transpose_b=is_transposed(w), **fields)


def operands(shape, x, w, *vectors):
    """The inputs of a call in the order of contexts.roles: x, w, then bias and others that are not None."""
    return [dense(x), stored(w, shape.transpose_b), *[v.contiguous() for v in vectors if v is not None]]


def gemm_reduce_scatter(x, w, group, bias=None, activation=None):
    out, at, m = outputs.gemm_reduce_scatter(x, w, group, bias, activation), find_group(group), x.shape[0]
    shape = gemm("gemm+reducescatter", x, w, at, bias=bias is not None, activation=activation)
    if not overlaps(at, shape, m):
        return sequential.gemm_reduce_scatter(x, w, group, bias, activation)
    enqueue(at, shape, m, [*operands(shape, x, w, bias), out])
    return out


def gemm_all_reduce(x, w, group, bias=None):
    out, at, m = outputs.gemm_all_reduce(x, w, group, bias), find_group(group), x.shape[0]
    shape = gemm("gemm+allreduce", x, w, at, bias=bias is not None)
    if not overlaps(at, shape, m):
        return sequential.gemm_all_reduce(x, w, group, bias)
    enqueue(at, shape, m, [*operands(shape, x, w, bias), out])
    return out


def gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias=None, eps=1e-5):
    outs, at, m = outputs.gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias, eps), find_group(group), x.shape[0]
    shape = gemm("gemm+allreduce", x, w, at, bias=bias is not None, norm_epsilon=eps)
    if not overlaps(at, shape, m):
        return sequential.gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias, eps)
    enqueue(at, shape, m, [*operands(shape, x, w, bias, residual, norm_weight), *outs])
    return outs


def all_gather_gemm(x, ws, group, rows=None, return_gathered=False):
    """Overlapped if there is one weight and no return_gathered: the gathered rows stay in staging memory."""
    (gathered, outs), at = outputs.all_gather_gemm(x, ws, group, rows, return_gathered), find_group(group)
    m = shapes.all_rows(x, rows, at)
    shape = gemm("allgather+gemm", x, ws[0], at)
    if return_gathered or len(ws) > 1 or not overlaps(at, shape, m):
        return sequential.all_gather_gemm(x, ws, group, rows, return_gathered)
    enqueue(at, shape, m, [*operands(shape, x, ws[0]), outs[0]])
    return gathered, outs


def replicated_gemm(x, w, group):
    outputs.replicated_gemm(x, w, group)
    return sequential.replicated_gemm(x, w, group)


@functools.lru_cache(maxsize=64)
def routing(splits, ranks):
    return Routing.of_splits([splits[source * ranks : (source + 1) * ranks] for source in range(ranks)])


def routed(op, x, w, group, splits):
    out, at = outputs.all_to_all_gemm(x, w, group, splits), find_group(group)
    m = max(map(sum, shapes.split_table(splits, at)))  # rows of the rank that sends most
    shape = gemm(op, x, w, at)
    if not overlaps(at, shape, m):
        return None
    enqueue(at, shape, m, [*operands(shape, x, w), out], routing(tuple(splits), at.size))
    return out


def all_to_all_gemm(x, w, group, splits):
    out = routed("alltoall+gemm", x, w, group, splits)
    return sequential.all_to_all_gemm(x, w, group, splits) if out is None else out


def gemm_all_to_all(x, w, group, splits):
    out = routed("gemm+alltoall", x, w, group, splits)
    return sequential.gemm_all_to_all(x, w, group, splits) if out is None else out


def mlp(x, up, down, group, activation=None, rows=None):
    out, at = outputs.mlp(x, up, down, group, activation, rows), find_group(group)
    m = shapes.all_rows(x, rows, at)
    shape = Shape("mlp", down.shape[0], x.shape[1], DTYPES.get(x.dtype), at.size, down.shape[1], is_transposed(up),
                  False, activation)  # fmt: skip
    if not overlaps(at, shape, m):
        return sequential.mlp(x, up, down, group, activation, rows)
    enqueue(at, shape, m, [*operands(shape, x, up), stored(down, shape.transpose_b), out])
    return out
