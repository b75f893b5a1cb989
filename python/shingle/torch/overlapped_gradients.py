"""CUDA kernels of the backward of all_gather_gemm: a product is scattered while x is gathered for the next one."""

import functools
from typing import NamedTuple

import torch

from ..context import Context
from . import contexts, outputs, overlapped, sequential, shapes
from .choices import BYTES, PREDICTED, Shape, by
from .counters import counts
from .settings import settings


def scatter_gradients(grads, x, ws, group):
    outputs.scatter_gradients(grads, x, ws, group)
    return sequential.scatter_gradients(grads, x, ws, group, scatter_gemm)


def scatter_gemm(grad, w, x, group, read):
    """sequential.scatter_gemm on any device. `read` must not keep the rows: the next call overwrites them.

    Copy engines need few SMs, and the product of a mechanism leaves them these. It would not leave enough to NCCL's
    gather: both hold SMs while they wait for peers. So without engines the product is mm, which waits for nobody.
    """
    m = grad.shape[0]
    rows = operator = None
    if grad.is_cuda and m > 0 and grad.dtype in overlapped.DTYPES:
        shape = overlapped.gemm("gemm+reducescatter", grad, w, group, beside=x.shape[1])
        operator = overlapped.operator_for(group, shape, m, grad.device)
        rows = None if operator is None else find_rows(group, shape, m, grad.device)
        overlapped.count(shape.op, rows is not None)
    if rows is None:
        return sequential.scatter_gemm(grad, w, x, group, read)
    counts["overlapped.allgather"] += 1
    dx = x.new_empty(x.shape[0], w.shape[0])
    with overlapped.current(grad.device), rows.context.lock:  # no other call may come before the reads
        side, here = side_stream(grad.device.index), torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            own = sequential.whole_shard(x, m, group)
            gathered = [overlapped.rows_argument(of) for of in (own, rows.of_all)]
            overlapped.enqueue(group, rows.operator, rows.of_all.shape[0], grad.device, gathered)
        matrices = [*overlapped.operands(operator, grad, w), overlapped.rows_argument(dx)]
        overlapped.enqueue(group, operator, m, grad.device, matrices)
        here.wait_stream(side)
        read(rows.of_all[:m])
        rows.context.extend((overlapped.current_stream(grad.device.index),))
    return dx


@functools.cache
def side_stream(index):
    return torch.cuda.Stream(index, priority=-1)  # of high priority: its few small kernels must not wait for products


class Rows(NamedTuple):
    """Registered memory into which copy engines gather the rows of a matrix."""

    context: Context
    operator: Shape  # that gathers
    of_all: torch.Tensor  # the ranks' shards, all as long as the largest


def find_rows(group, shape, m, device):
    """The Rows for m rows of x; None if engines do not serve them. First use is collective.

    shape: of the product beside the gather.
    """
    rows, row_bytes = shapes.shard_rows(m, group) * group.size, shape.beside * BYTES[shape.dtype]
    if group.size == 1 or rows * row_bytes < settings.min_bucket_bytes:
        return None
    most = shapes.shard_rows(settings.max_m, group) * group.size
    contexts.reserve(group, device.index, most * row_bytes, contexts.ROWS)
    gather = Shape("allgather", shape.beside, shape.beside, shape.dtype, group.size, beside=shape.beside)
    operator = by(gather, PREDICTED)
    made = contexts.find_context(group, device.index, contexts.ROWS)
    call = contexts.find_call(group, operator, rows, device.index)
    if rows not in call.served:  # by sequential without peer access
        call.served[rows] = call.mechanism(rows) == operator.mechanism.split()[0]
    if not call.served[rows] or made.registered_bytes < rows * row_bytes:  # graphs hold memory for a smaller max_m
        return None
    if made.rows is None:
        made.rows = made.context.allocate(group.rank, made.registered_bytes)
    made.in_graphs |= torch.cuda.is_current_stream_capturing()
    dtype = next(dtype for dtype, name in overlapped.DTYPES.items() if name == shape.dtype)
    return Rows(made.context, operator, overlapped.staged(made.rows, rows, shape.beside, dtype))
