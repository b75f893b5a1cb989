"""CUDA kernels of the ops: one call of the group's context, or mm + c10d where that is faster.

Which of them runs depends on the shape, on m, on dtypes and on tables that are equal on all ranks.
"""

import contextlib
import functools

import torch

from ..context import Routing
from . import contexts, native, outputs, sequential, shapes
from .counters import counts
from .choices import LIBRARY, Shape, by, table
from .groups import find_group
from .settings import settings

DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


def dtype_named(name):
    return next(dtype for dtype, of in DTYPES.items() if of == name)


def rows_argument(x):
    """A matrix as (address, rows, row stride or 0 if dense), and its owner: x, or a copy if its columns have gaps."""
    if x.is_contiguous():
        return (x.data_ptr(), x.shape[0], 0), x
    row_stride, step = x.stride()
    if step != 1 or row_stride < x.shape[1]:
        x, row_stride = x.contiguous(), 0
    return (x.data_ptr(), x.shape[0], row_stride), x


def is_transposed(w):
    """True if a weight [..., n, k] is passed as n×k; false: as k×n, because w is a transposed view."""
    return w.is_contiguous() or w.stride(-1) == 1 or w.stride(-2) != 1


def weight_argument(w, transposed):
    return rows_argument(w if transposed else w.t())


def vector_argument(vector):
    vector = vector.contiguous()
    return (vector.data_ptr(), 1, 0), vector


def chosen(group, shape, m, device, lengths=None):
    """The operator that serves a call on a device; None: it runs as mm + c10d. Counts and records the call."""
    if shape.dtype is None or m == 0:
        return None
    operator = operator_for(group, shape, m, device, lengths)
    count(shape.op, operator is not None)
    return operator


def operator_for(group, shape, m, device, lengths=None):
    """As chosen(), but the caller counts the call."""
    note(group, shape, device)
    captured = torch.cuda.is_current_stream_capturing()
    choice = table.choose(shape._replace(captured=True) if captured else shape, m, lengths)
    return None if choice == LIBRARY else by(shape, choice)


def count(op, overlapped):
    counts[f"{'overlapped' if overlapped else 'sequential'}.{op}"] += 1


def note(group, shape, device):
    """Records an operator for warmup."""
    if used is not None:
        used[group, shape, device.index] = None


# Shapes of calls in order of first use, while shingle.torch.warmup records them.
used: dict | None = None


def enqueue(group, shape, m, device, operands, routing=None, like=None, lengths=None):
    """One call on the current stream of a device, which autograd's threads may have to select.

    operands: (argument, owner) of each matrix, in the order of contexts.roles. Owners may go when this returns: their
    memory is reused in the order of the stream. like: key, inputs and outputs, by which later calls are served alike.
    lengths: tokens of packed sequences.
    """
    with current(device):
        call = contexts.find_call(group, shape, m, device.index)
        arguments = [argument for argument, _ in operands]
        with call.context.lock:
            call(m if routing is None else 0, arguments, (current_stream(device.index),), routing, lengths)
            if like is not None and used is None and settings.native:
                native.remember(*like, group.process_group, "overlapped." + shape.op, call, m, arguments)


def current(device):
    """Makes a device current, if it is not."""
    here = torch.cuda.current_device() == device.index
    return contextlib.nullcontext() if here else torch.cuda.device(device.index)


def current_stream(index):
    """The cudaStream_t of the current stream of a device."""
    return torch._C._cuda_getCurrentRawStream(index)


@functools.cache
def shape_of(op, n, k, dtype, ranks, transposed, **fields):
    """The Shape of a call. Cached: equal calls are frequent."""
    return Shape(op, n, k, DTYPES.get(dtype), ranks, transpose_b=transposed, **fields)


def gemm(op, x, w, group, **fields):
    """The Shape of an operator of one product."""
    n, k = w.shape
    return shape_of(op, n, k, x.dtype, group.size, is_transposed(w), **fields)


def operands(shape, x, w, *vectors):
    """The inputs of a call: x, w, then bias and others that are not None."""
    found = [rows_argument(x), weight_argument(w, shape.transpose_b)]
    for other in vectors:
        if other is not None:
            found.append(vector_argument(other) if other.dim() == 1 else rows_argument(other))
    return found


def gemm_reduce_scatter(x, w, group, bias=None, activation=None):
    key, inputs = ("gemm_reduce_scatter", group, x.shape, activation), (x, w) if bias is None else (x, w, bias)
    if served := native.serve(key, inputs):
        return served[0]
    out, at, m = outputs.gemm_reduce_scatter(x, w, group, bias, activation), find_group(group), x.shape[0]
    shape = chosen(at, gemm("gemm+reducescatter", x, w, at, bias=bias is not None, activation=activation), m, x.device)
    if shape is None:
        return sequential.gemm_reduce_scatter(x, w, group, bias, activation)
    matrices = [*operands(shape, *inputs), rows_argument(out)]
    enqueue(at, shape, m, x.device, matrices, like=(key, inputs, (out,)))
    return out


def gemm_all_reduce(x, w, group, bias=None):
    key, inputs = ("gemm_all_reduce", group, x.shape), (x, w) if bias is None else (x, w, bias)
    if served := native.serve(key, inputs):
        return served[0]
    out, at, m = outputs.gemm_all_reduce(x, w, group, bias), find_group(group), x.shape[0]
    shape = chosen(at, gemm("gemm+allreduce", x, w, at, bias=bias is not None), m, x.device)
    if shape is None:
        return sequential.gemm_all_reduce(x, w, group, bias)
    matrices = [*operands(shape, *inputs), rows_argument(out)]
    enqueue(at, shape, m, x.device, matrices, like=(key, inputs, (out,)))
    return out


def gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias=None, eps=1e-5):
    key = "gemm_all_reduce_norm", group, x.shape, eps
    inputs = (x, w, residual, norm_weight) if bias is None else (x, w, bias, residual, norm_weight)
    if served := native.serve(key, inputs):
        return served
    outs, at = outputs.gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias, eps), find_group(group)
    m = x.shape[0]
    shape = None
    if eps > 0:  # an operator takes 0 for its default
        normed = gemm("gemm+allreduce", x, w, at, bias=bias is not None, normed=True, norm_epsilon=eps)
        shape = chosen(at, normed, m, x.device)
    if shape is None:
        return sequential.gemm_all_reduce_norm(x, w, residual, norm_weight, group, bias, eps)
    matrices = [*operands(shape, *inputs), *map(rows_argument, outs)]
    enqueue(at, shape, m, x.device, matrices, like=(key, inputs, outs))
    return outs


def all_gather_gemm(x, ws, group, rows=None, return_gathered=False):
    """One call for the largest weight. Other products, and return_gathered, read the rows that it gathered."""
    key, inputs = ("all_gather_gemm", group, x.shape, rows), (x, *ws)
    reads = len(ws) != 1 or return_gathered
    if not reads and (served := native.serve(key, inputs)):
        return served[1], [served[0]]
    (gathered, outs), at = outputs.all_gather_gemm(x, ws, group, rows, return_gathered), find_group(group)
    m = shapes.all_rows(x, rows, at)
    first = max(range(len(ws)), key=lambda i: ws[i].shape[0])

    def read(found):
        for i, (w, out) in enumerate(zip(ws, outs)):
            if i != first:
                torch.mm(found, w.t(), out=out)
        if return_gathered:
            gathered.copy_(found)

    like = None if reads else (key, inputs, (*outs, gathered))
    if not gather(x, ws[first], at, m, outs[first], read if reads else None, like):
        return sequential.all_gather_gemm(x, ws, group, rows, return_gathered)
    return gathered, outs


def gather(x, w, group, m, out, read=None, like=None):
    """out = gathered x · wᵀ, then read(gathered x). The rows are in staging memory: `read` enqueues what reads them.

    False if this runs as mm + c10d. Nothing is done then.
    """
    shape = chosen(group, gemm("allgather+gemm", x, w, group, keeps=read is not None), m, x.device)
    if shape is None:
        return False
    inputs = [*operands(shape, x, w), rows_argument(out)]
    if read is None:
        enqueue(group, shape, m, x.device, inputs, like=like)
        return True
    with current(x.device):
        context = contexts.find_call(group, shape, m, x.device.index).context
        with context.lock:  # no other call may come before the reads
            enqueue(group, shape, m, x.device, inputs)
            address = context.gathered(group.rank)
            in_order = address is not None  # false by a table that names a mechanism which rotates rows
            read(staged(address, m, x.shape[1], x.dtype) if in_order else sequential.all_gather(x, m, group))
            context.extend((current_stream(x.device.index),))
    return True


def gather_gemm(x, w, group, rows, read, keeps=False):
    """gathered x · wᵀ, and read(gathered x), which may keep the rows if `keeps`. On any device; eager."""
    at, out = find_group(group), x.new_empty(rows, w.shape[0])
    if x.is_cuda and gather(x, w, at, rows, out, reading_copies(read) if keeps else read):
        return out
    gathered = sequential.all_gather(x, rows, at)
    read(gathered)
    return torch.mm(gathered, w.t(), out=out)


def reading_copies(read):
    """`read` of a copy of the rows, because calls of the context overwrite them."""
    return lambda rows: read(rows.clone())


class Staged:
    """Memory of a context, for torch.as_tensor."""

    def __init__(self, address, rows, columns, typestr):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": (rows, columns), "typestr": typestr, "version": 3
        }  # fmt: skip


@functools.lru_cache(maxsize=256)
def staged(address, rows, columns, dtype):
    """A matrix at an address, without a copy."""
    words = "<f4" if dtype.itemsize == 4 else "<i2"  # the interface has no bf16
    return torch.as_tensor(Staged(address, rows, columns, words), device="cuda").view(dtype)


def gather_gradients(grad, x, w, group, bias):
    outputs.gather_gradients(grad, x, w, group, bias)
    at, dx, others = find_group(group), x.new_empty(x.shape), []

    def read(found):
        others.extend(sequential.gradients_of_weight(found, x, w, bias))

    if not gather(grad, w.t(), at, x.shape[0], dx, read):
        return sequential.gather_gradients(grad, x, w, group, bias)
    return dx, *others


def replicated_gemm(x, w, group):
    outputs.replicated_gemm(x, w, group)
    return sequential.replicated_gemm(x, w, group)


@functools.lru_cache(maxsize=64)
def routing(splits, ranks):
    return Routing.of_splits([splits[source * ranks : (source + 1) * ranks] for source in range(ranks)])


def routed(op, x, w, group, splits):
    out, at = outputs.all_to_all_gemm(x, w, group, splits), find_group(group)
    m = max(map(sum, shapes.split_table(splits, at)))  # rows of the rank that sends most
    shape = chosen(at, gemm(op, x, w, at), m, x.device)
    if shape is None:
        return None
    enqueue(at, shape, m, x.device, [*operands(shape, x, w), rows_argument(out)], routing(tuple(splits), at.size))
    return out


def all_to_all_gemm(x, w, group, splits):
    out = routed("alltoall+gemm", x, w, group, splits)
    return sequential.all_to_all_gemm(x, w, group, splits) if out is None else out


def gemm_all_to_all(x, w, group, splits):
    out = routed("gemm+alltoall", x, w, group, splits)
    return sequential.gemm_all_to_all(x, w, group, splits) if out is None else out


def mlp(x, up, down, group, activation=None, rows=None):
    key, inputs = ("mlp", group, x.shape, activation, rows), (x, up, down)
    if served := native.serve(key, inputs):
        return served[0]
    out, at = outputs.mlp(x, up, down, group, activation, rows), find_group(group)
    m = shapes.all_rows(x, rows, at)
    (n, inner), k = down.shape, x.shape[1]
    whole = shape_of("mlp", n, k, x.dtype, at.size, is_transposed(up), activation=activation, inner=inner)
    shape = chosen(at, whole, m, x.device)
    if shape is None:
        return sequential.mlp(x, up, down, group, activation, rows)
    matrices = [*operands(shape, x, up), weight_argument(down, shape.transpose_b), rows_argument(out)]
    enqueue(at, shape, m, x.device, matrices, like=(key, inputs, (out,)))
    return out
