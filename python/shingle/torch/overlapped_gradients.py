"""CUDA kernels of the backward of all_gather_gemm: copy engines gather x again beside the product that is scattered."""

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


def scatter_gemm(grad, w, x, group, read, keeps=False):
    """sequential.scatter_gemm on any device. keeps: `read` may keep the rows.

    Copy engines need two SMs, which the mechanism's product leaves free. NCCL's gather needs more, and both would hold
    SMs while they wait for peers. So without engines the product is mm, which does not wait for peers.
    """
    if grad.is_cuda and grad.shape[0] > 0 and grad.dtype in overlapped.DTYPES:
        with overlapped.current(grad.device):
            dx = overlapped_scatter(grad, w, x, group, overlapped.reading_copies(read) if keeps else read)
        if dx is not None:
            return dx
    return sequential.scatter_gemm(grad, w, x, group, read)


def overlapped_scatter(grad, w, x, group, read):
    """scatter_gemm by a mechanism on the current device; None: c10d serves it, and nothing is done.

    `read` must not keep the rows: the next call overwrites them.
    """
    m, device = grad.shape[0], grad.device
    shape = overlapped.gemm("gemm+reducescatter", grad, w, group, gathers=x.shape[1])
    operator = overlapped.operator_for(group, shape, m, device)
    into = None if operator is None else find_memory(group, shape, m, device)
    overlapped.count(shape.op, into is not None)
    if into is None:
        return None
    counts["overlapped.gathered_inputs"] += 1
    dx, side, here = x.new_empty(x.shape[0], w.shape[0]), side_stream(device.index), torch.cuda.current_stream()
    products = contexts.find_call(group, operator, m, device.index).context  # before the lock: it may declare
    with into.context.lock:  # no other call may come before the reads
        side.wait_stream(here)
        try:
            with torch.cuda.stream(side):
                own = sequential.padded_shard(x, m, group)
                matrices = [overlapped.rows_argument(of) for of in (own, into.x)]
                overlapped.enqueue(group, into.gather, into.x.shape[0], device, matrices)
            matrices = [*overlapped.operands(operator, grad, w), overlapped.rows_argument(dx)]
            overlapped.enqueue(group, operator, m, device, matrices)
        finally:  # memory of x is reused in the order of `here`
            here.wait_stream(side)
        products.extend((here.cuda_stream,))  # other products may take all SMs: they follow the gather
        read(into.x[:m])
        into.context.extend((here.cuda_stream,))
    return dx


@functools.cache
def side_stream(index):
    return torch.cuda.Stream(index, priority=-1)  # of high priority: its few small kernels must not wait for products


class Memory(NamedTuple):
    """Registered memory into which copy engines gather x."""

    context: Context
    gather: Shape  # the operator
    x: torch.Tensor  # the ranks' shards, all as long as the largest


def find_memory(group, shape, m, device):
    """Memory for m rows of x; None if engines do not serve them. First use is collective.

    shape: of the product beside the gather.
    """
    rows, row_bytes = shapes.shard_rows(m, group) * group.size, shape.gathers * BYTES[shape.dtype]
    if group.size == 1 or rows * row_bytes < settings.min_bucket_bytes:
        return None
    columns = shape.gathers
    gather = by(Shape("allgather", columns, columns, shape.dtype, group.size, gathers=columns), PREDICTED)
    contexts.reserve(group, device.index, contexts.largest_m(gather) * row_bytes, contexts.INPUTS)
    made = contexts.find_context(group, device.index, contexts.INPUTS)
    call = contexts.find_call(group, gather, rows, device.index)
    if rows not in call.served:  # by sequential without peer access
        call.served[rows] = call.mechanism(rows) == gather.mechanism.split()[0]
    if not call.served[rows] or made.registered_bytes < rows * row_bytes:  # graphs hold memory for a smaller max_m
        return None
    if made.address is None:
        made.address = made.context.allocate(group.rank, made.registered_bytes)
    made.in_graphs |= torch.cuda.is_current_stream_capturing()
    x = overlapped.staged(made.address, rows, columns, overlapped.dtype_named(shape.dtype))
    return Memory(made.context, gather, x)
