"""Collectives of flat buckets, by copy engines of a context or by c10d.

A bucket has the same elements on each rank. Gathered: shards of equal size, one behind the other. Reduced: scale · Σ
over the ranks in fp32, in the order of ranks, rounded once. Copy engines move the bytes and few SMs sum, so that
products on other streams keep their speed. Small buckets, and those for which warmup has measured that c10d is faster,
take c10d.

On CPU all bytes go by c10d. Buckets that engines would move are summed in the order of ranks there, too.
"""

import contextlib
import functools
import math
from typing import NamedTuple

import torch
import torch.distributed as dist

from .. import contexts, overlapped
from ..choices import LIBRARY, Shape, by, table
from ..counters import counts, expect
from ..groups import Group, find_group
from . import library
from .registered import Heap, rounded_up

WORDS = torch.float32, torch.float16  # a gather moves words of 4 or 2 bytes, whatever they hold
WIDEST = 1024  # most elements of a row of an operator
MOST_ROWS = (1 << 31) - 1  # of an operator
WHY_NOTHING = (
    "NCCL takes buckets below min_bucket_bytes, those for which warmup measured that it is faster, and those of GPUs "
    "that do not reach each other's memory. counters() tells how many."
)


class Work(dist.Work):
    """A collective on a stream of its own: wait() makes the current stream wait for it. event None: it is done.

    tensors: those that it reads and writes. They stay alive until wait(), as with c10d: their memory would otherwise be
    reused in the order of another stream.
    """

    def __init__(self, event=None, tensors=()):
        super().__init__()
        self.event, self.tensors = event, tensors

    def wait(self, timeout=None):
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)
        self.tensors = ()
        return True


class Bucket(NamedTuple):
    """A collective of a bucket of `elements` elements in all, as tables know it."""

    shape: Shape
    elements: int
    shard: int  # elements of a rank's shard; of an all-reduce, all elements
    group: Group
    device: torch.device

    def operator(self, scale):
        """The context's operator that serves the bucket, with rows of a power of two of elements; None: c10d does.

        The same on all ranks.
        """
        if self.shape.dtype is None or self.elements == 0 or self.shape.ranks == 1:
            return None
        captured = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        shape = self.shape._replace(captured=captured)
        choice = table.choose(shape, self.elements)
        width = math.gcd(self.shard, WIDEST)
        if choice == LIBRARY or self.elements // width > MOST_ROWS:
            return None
        return by(shape, choice)._replace(n=width, k=width, scale=scale)

    def rows(self, operator):
        return self.elements // operator.n

    def note(self, way):
        """Counts a call, and tells warmup of it."""
        counts[f"{way}.{self.shape.op}"] += 1
        if overlapped.used is not None and self.device.type == "cuda" and self.shape.dtype is not None:
            overlapped.used.setdefault((self.group, self.shape, self.device.index), set()).add(self.elements)


def gathered(out, process_group):
    """The bucket of an all-gather into `out`."""
    group = find_group(process_group.group_name)
    word = next((word for word in WORDS if out.nbytes % (word.itemsize * group.size) == 0), None)
    shape = Shape("allgather", 1, 1, overlapped.DTYPES.get(word), group.size)
    words = 0 if word is None else out.nbytes // word.itemsize
    return Bucket(shape, words, words // group.size, group, out.device)


def reduced(op, x, shard, out_dtype, process_group):
    """The bucket of a sum of `x` over the ranks. Sums of narrower values may be fp32."""
    group = find_group(process_group.group_name)
    widens = out_dtype != x.dtype
    dtype = None if widens and out_dtype != torch.float32 else overlapped.DTYPES.get(x.dtype)
    return Bucket(Shape(op, 1, 1, dtype, group.size, f32_sums=widens), x.numel(), shard, group, x.device)


def takes_contexts(device):
    """True if contexts serve a device. Tests replace it."""
    return device.type == "cuda"


def serves(bucket, operator):
    """True if a context's mechanism serves a bucket. Declares the operator at first use: collective.

    Ranks that do not reach each other's memory would take another plan of the context, which is no faster than c10d.
    """
    if operator is None or not takes_contexts(bucket.device):
        return False
    rows = bucket.rows(operator)
    call = contexts.find_call(bucket.group, operator, rows, bucket.device.index)
    if rows not in call.served:
        call.served[rows] = call.mechanism(rows) == operator.mechanism.split()[0]
    return call.served[rows]


def reserve(process_group, device, sizes):
    """Registered memory of a group will hold gathered buckets of these bytes together. Local; before they are made."""
    if takes_contexts(device) and process_group.size() > 1:
        contexts.reserve(find_group(process_group.group_name), device.index, sum(map(rounded_up, sizes)))


def watch(process_group, device, ops, source):
    """Makes room for collectives beside products, and warns at exit if engines carried out none of these ops."""
    if device.type == "cuda" and process_group.size() > 1:
        contexts.expect_buckets(device.index)
        expect(tuple(f"overlapped.{op}" for op in ops), source, WHY_NOTHING)


def heap_of(bucket):
    """Registered memory for gathers of a group; None if there is none. First use is collective."""
    if not takes_contexts(bucket.device) or not contexts.reserved(bucket.group, bucket.device.index):
        return None
    made = contexts.find_context(bucket.group, bucket.device.index, contexts.GATHERS)
    if made.heap is None:
        made.heap = Heap(made.context, bucket.group.rank, made.registered_bytes)
    if bucket.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        made.in_graphs = True
    return made.heap


def call(bucket, operator, a, out):
    """One call of the bucket's operator on the current stream."""
    rows = bucket.rows(operator)
    own = rows // bucket.group.size
    arguments = {
        "allgather": ((a.data_ptr(), own, 0), (out.data_ptr(), rows, 0)),
        "reducescatter": ((a.data_ptr(), rows, 0), (out.data_ptr(), own, 0)),
        "allreduce": ((a.data_ptr(), rows, 0), (out.data_ptr(), rows, 0)),
    }[bucket.shape.op]
    overlapped.enqueue(bucket.group, operator, rows, bucket.device, list(zip(arguments, (a, out), strict=True)))


@functools.cache
def side_stream(index, op):
    return torch.cuda.Stream(index, priority=-1)  # of high priority: its few small kernels must not wait for products


@contextlib.contextmanager
def beside(bucket):
    """The current stream is another one, behind the work so far. On CPU nothing changes."""
    if bucket.device.type != "cuda":
        yield
        return
    side = side_stream(bucket.device.index, bucket.shape.op)
    side.wait_stream(torch.cuda.current_stream(bucket.device))
    with torch.cuda.stream(side):
        yield


def in_stream(bucket, async_op, enqueue, *tensors):
    """Calls enqueue() on the current stream; with async_op on another one, and returns the Work on the tensors."""
    if not async_op:
        return enqueue()
    with beside(bucket):
        enqueue()
        return Work(torch.cuda.current_stream().record_event() if bucket.device.type == "cuda" else None, tensors)


def empty_gathered(elements, dtype, device, process_group):
    """Memory for the result of a gather: registered, if copy engines will gather into it and reserve() made room."""
    out = torch.empty(elements, dtype=dtype, device="meta")
    bucket = gathered(out, process_group)._replace(device=device)
    if elements and (heap := heap_of(bucket)) is not None and serves(bucket, bucket.operator(1.0)):
        if (found := heap.empty(elements, dtype, device)) is not None:
            return found
    return torch.empty(elements, dtype=dtype, device=device)


def gather(out, own, process_group, async_op=False):
    """The ranks' shards `own`, one behind the other. Returns a Work if async_op.

    `out` of empty_gathered() is filled by copy engines. If `own` lies at its place in `out`, nothing else is copied.
    """
    bucket = gathered(out, process_group)
    operator = bucket.operator(1.0)
    heap = None if operator is None else heap_of(bucket)
    if heap is None or not heap.holds(out) or not serves(bucket, operator):
        bucket.note("sequential")
        return library.gather(out, own, bucket.group, async_op)
    bucket.note("overlapped")
    return in_stream(bucket, async_op, lambda: call(bucket, operator, own, out), own, out)


def factor_of(op, ranks):
    """What a reduction multiplies the sum by; None if it is not a sum."""
    kind = getattr(op, "op", op)
    if kind == dist.ReduceOp.SUM:
        return 1.0
    if kind == dist.ReduceOp.AVG:
        return 1.0 / ranks
    if kind == dist.ReduceOp.PREMUL_SUM and isinstance(factor := op.__getstate__()[1], float):
        return factor
    return None


def takes_narrow(elements, dtype, out_dtype, device, process_group):
    """True if a reduce-scatter of values in `dtype` to sums in `out_dtype` goes by engines, without a wider copy."""
    x = torch.empty(elements, dtype=dtype, device="meta")
    size = process_group.size()
    bucket = reduced("reducescatter", x, elements // size, out_dtype, process_group)._replace(device=device)
    operator = bucket.operator(1.0 / size)
    return operator is not None and (not takes_contexts(device) or serves(bucket, operator))


def scatter(out, parts, process_group, op, async_op=False):
    """This rank's shard of the reduced `parts`. `out` may be fp32 if parts are narrower. Returns a Work if async_op."""
    bucket = reduced("reducescatter", parts, out.numel(), out.dtype, process_group)
    scale = factor_of(op, bucket.group.size)
    operator = None if scale is None else bucket.operator(scale)
    if serves(bucket, operator):
        bucket.note("overlapped")
        return in_stream(bucket, async_op, lambda: call(bucket, operator, parts, out), parts, out)
    bucket.note("sequential")
    if operator is not None and not takes_contexts(out.device):
        enqueue = functools.partial(library.exchange_scatter, out, parts, scale, bucket.group)
        return in_stream(bucket, async_op, enqueue, parts, out)
    return library.scatter(out, parts, op, bucket.group, async_op)


def reduce(x, process_group, scale):
    """Scale · Σ of x over the ranks, in place, as a future of x."""
    bucket = reduced("allreduce", x, x.numel(), x.dtype, process_group)
    operator = bucket.operator(scale)
    by_context = serves(bucket, operator)
    bucket.note("overlapped" if by_context else "sequential")
    if not by_context and (operator is None or takes_contexts(x.device)):
        return library.reduced_future(x, scale, bucket.group)
    future = torch.futures.Future(devices=[x.device] if x.device.type == "cuda" else None)
    with beside(bucket):
        if by_context:
            call(bucket, operator, x, x)
        else:
            library.exchange_reduce(x, scale, bucket.group)
        future.set_result(x)  # whose wait() waits for the work of the current stream so far
    return future
