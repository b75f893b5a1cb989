"""CUDA kernels of the backward of all_gather_gemm: a product is scattered while x is gathered for the next one."""

from . import outputs, overlapped, sequential, shapes
from .data_parallel import buckets
from .settings import settings


def scatter_gradients(grads, x, ws, group):
    outputs.scatter_gradients(grads, x, ws, group)
    return sequential.scatter_gradients(grads, x, ws, group, scatter_gemm)


def scatter_gemm(grad, w, x, group, read):
    """sequential.scatter_gemm on any device. `read` must not keep the rows: copy engines may gather into them again.

    Copy engines need few SMs, and the product of a mechanism leaves them these. It would not leave enough to NCCL's
    gather: both hold SMs while they wait for peers. So without engines the product is mm, which waits for nobody.
    """
    begun = begin(grad, w, x, group) if grad.is_cuda and grad.shape[0] > 0 else None
    if begun is None:
        return sequential.scatter_gemm(grad, w, x, group, read)
    operator, rows, gathering = begun
    dx = x.new_empty(x.shape[0], w.shape[0])
    matrices = [*overlapped.operands(operator, grad, w), overlapped.rows_argument(dx)]
    overlapped.enqueue(group, operator, grad.shape[0], grad.device, matrices)
    gathering.wait()
    read(rows)
    return dx


def begin(grad, w, x, group):
    """The operator of the product, and the gather that has begun: its rows and its Work. None: c10d serves both."""
    shape = overlapped.gemm("gemm+reducescatter", grad, w, group, beside=x.shape[1])
    if shape.dtype is None:
        return None
    m, gathering = grad.shape[0], None
    operator = overlapped.operator_for(group, shape, m, grad.device)
    if operator is not None:
        most_rows = group.size * shapes.shard_rows(settings.max_m, group)
        gathering = buckets.gather_beside(sequential.whole_shard(x, m, group), group, most_rows * x.shape[1])
    overlapped.count(shape.op, gathering is not None)
    if gathering is None:
        return None
    rows, work = gathering
    return operator, rows[:m], work
