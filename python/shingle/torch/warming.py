"""warmup: declares the operators that a step uses, and measures which mechanism is fastest at which m."""

import itertools
import math

import torch

from ..errors import InvalidArgument
from . import contexts, experts, native, overlapped, overlapped_attention, overlapped_gradients, shapes
from .choices import BUCKETS, LIBRARY, PREDICTED, Shape, by, fastest, host_routes, table
from .data_parallel import tuning
from .experts.routing import HostRouting, Layout
from .experts.slices import Slices
from .experts.slots import DeviceRouting, ReplicatedSlots, SlicedSlots, Slots
from .groups import Group
from .settings import settings
from .timing import forced, median_of, slowest

KERNELS = {
    "gemm+reducescatter": overlapped.gemm_reduce_scatter,
    "gemm+allreduce": overlapped.gemm_all_reduce,
    "allgather+gemm": overlapped.all_gather_gemm,
    "alltoall+gemm": overlapped.all_to_all_gemm,
    "gemm+alltoall": overlapped.gemm_all_to_all,
    "mlp": overlapped.mlp,
    "attention+reducescatter": overlapped_attention.attention_reduce_scatter,
    "ulysses-attention": overlapped_attention.ulysses_attention,
    "allgather+attention": overlapped_attention.ring_attention,
    "attention-backward": overlapped_attention.ring_gradients,
    "alltoall+grouped-gemm": experts.overlapped.dispatch,
    "grouped-gemm+alltoall": experts.overlapped.combine,
    "moe": experts.overlapped.moe,
    "allgather+grouped-gemm": experts.overlapped.dispatch,
    "grouped-gemm+reducescatter": experts.overlapped.combine,
    "moe-tp": experts.overlapped.moe,
    "grouped-gemm+allreduce": experts.overlapped.combine,
    "moe+allreduce": experts.overlapped.moe,
}


def kernel_of(shape):
    if shape.normed:
        return overlapped.gemm_all_reduce_norm
    if shape.gathers:
        return overlapped_gradients.scatter_gemm
    return overlapped_attention.attend_with_lse if shape.returns_lse else KERNELS[shape.op]


# Mechanisms that are tried, beside the fastest predicted one.
CANDIDATES = {
    "gemm+reducescatter": ["fused", "fused tile=64x128", "fused tile=128x128", "fused helpers=4", "fused helpers=16",
                           "ring engines=1 slices=1", "ring engines=1 slices=2", "low-latency"],
    "gemm+allreduce": ["fused", "fused one-shot", "fused tile=64x128 one-shot", "fused tile=128x128 one-shot",
                       "fused helpers=4", "fused helpers=16", "fused helpers=16 tile=128x128",
                       "ring engines=1 slices=1", "low-latency"],
    "allgather+gemm": ["fused", "fused mover=store helpers=8", "ring engines=1 slices=1", "ring engines=1 slices=2",
                       "copy-engine variant=ring", "low-latency"],
    "attention+reducescatter": ["fused", "ring engines=1", "ring engines=1 slices=2", "ring row-parallel"],
    "ulysses-attention": ["ring engines=1 slices=1", "ring engines=1 slices=4", "ring engines=1 slices=8",
                          "ring mover=store slices=2", "ring mover=store slices=8", "ring slices=2"],
    "allgather+attention": ["ring engines=1", "ring engines=2 slices=2", "ring mover=store", "ring"],
    "attention-backward": ["ring engines=1", "ring mover=store", "ring"],
    **dict.fromkeys(Layout.OPS.values(), ["sequential", "chunked", "signal", "fused"]),
    **dict.fromkeys(Slices.OPS.values(), ["sequential", "chunked", "signal", "fused mover=copy-engine",
                                          "fused mover=store helpers=none"]),
    **dict.fromkeys(filter(None, ReplicatedSlots.OPS.values()), ["sequential", "signal", "fused", "fused one-shot",
                                                                 "fused helpers=none"]),
}  # fmt: skip
CALLS = 5  # of a sample, one behind the other


def warmup(step, *, tune=True, least_m=16, confirm=0):
    """Runs `step()` once, then declares each operator that it used, so that CUDA graphs can capture it.

    step: a call of the model, or a whole training step. tune: also measures these operators, as mm + c10d and by
    several mechanisms, launched one by one and in CUDA graphs, and enters the fastest into shingle.torch.table at
    some sizes from least_m to settings.max_m. Bias and layout of the weight are left out. Experts without a
    capacity are measured with a new routing in each call, and not in CUDA graphs.

    Buckets of fsdp() and ddp() are measured beside products, at the sizes that the step used. confirm: then the step
    decides. It runs so many times each with c10d, with what serves without a table and with what was measured, in
    turns, for all buckets and for one kind at a time. What is fastest is kept; if warmup is interrupted, what was
    confirmed last is, at first c10d. The step must then have no lasting effect, such as that of an optimizer.

    Collective: all ranks call it with the same step, outside of captures. On CPU it only runs the step. Returns what
    `step` returned.
    """
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise InvalidArgument("warmup was called in a CUDA graph capture; call it before")
    overlapped.used = {}
    native.forget()  # so that every call is recorded
    try:
        result = step()
    finally:
        used, overlapped.used = overlapped.used, None
    buckets = {bucket: sizes for bucket, sizes in used.items() if bucket[1].op in BUCKETS}
    for group, shape, device in (key for key in used if key not in buckets):
        with torch.cuda.device(-1 if device is None else device):  # -1: as it is
            for at in [shape] if host_routes(shape) else [shape, shape._replace(captured=True)]:
                if tune and at.key not in table.rows:
                    table.enter(at, fastest(measure(group, at, sizes_between(least_m, settings.max_m), device)))
            for operator in table.mechanisms(shape):
                contexts.find_call(group, operator, settings.max_m, device)
                if shape.gathers:
                    overlapped_gradients.find_memory(group, shape, settings.max_m, torch.device("cuda", device))
    if tune and buckets:
        tuning.tune(buckets, step, confirm)
    return result


def sizes_between(least, most):
    """The m to measure: powers of two in [least, most], and most. From 512 on also the middle of two, below 1024 the
    quarters.

    A product takes a whole number of waves of tiles: what is fastest at two powers may lose between them, most where
    waves are few.
    """
    sizes = {most}
    for power in (1 << exponent for exponent in range(most.bit_length())):
        parts = 1 if power < 512 else 4 if power < 1024 else 2
        sizes |= {power + part * power // parts for part in range(parts)}
    return sorted(m for m in sizes if least <= m <= most)


def measure(group, shape, sizes, device):
    """Median times of a call in microseconds, those of the slowest rank: {m: {choice: time}}."""
    if not shape.inner:  # one product
        shape = shape._replace(bias=False, activation=None)  # as `arguments`
    calls = {choice: contexts.find_call(group, by(shape, choice), settings.max_m, device)
             for choice in (PREDICTED, *CANDIDATES.get(shape.op, []))}  # fmt: skip
    time = routed_us if host_routes(shape) else graph_us if shape.captured else median_us
    kernel, found = kernel_of(shape), {}
    for m in sizes:
        # A mechanism that does not serve this m is replaced by `sequential`: the libraries again.
        choices = [
            choice for choice, call in calls.items()
            if choice == PREDICTED
            or host_routes(shape)  # the routing, not m, decides
            or (call.mechanism(m) in choice and (not shape.keeps or call.gathers_in_order(m)))
        ]  # fmt: skip
        if shape.gathers and overlapped_gradients.find_memory(group, shape, m, torch.device("cuda", device)) is None:
            choices = []  # all would run as the libraries
        args = arguments(group, shape, m)
        times = [time(group, kernel, args, choice) for choice in (LIBRARY, *choices)]
        found[m] = dict(zip((LIBRARY, *choices), slowest(group, times)))
    return found


def median_us(group, kernel, args, choice):
    """Median device time of a call. Calls are launched while the device sleeps, so the host's time is not in it."""

    def launch():
        for _ in range(CALLS):
            kernel(*map(renewed, args))

    with forced(choice):
        return median_of(group, launch) / CALLS


def graph_us(group, kernel, args, choice):
    """Median device time of a call in a CUDA graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with contexts.graphs_that_end():
        with forced(choice), torch.cuda.stream(stream):
            kernel(*args)
            stream.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(CALLS):
                    kernel(*map(renewed, args))
        return median_of(group, graph.replay) / CALLS


def renewed(arg):
    """Slots to assign anew, as in each call of a model; other arguments as they are."""
    if not isinstance(arg, DeviceRouting):
        return arg
    return type(arg)(arg.topk_ids, arg.experts, arg.group, arg.declared_capacity, arg.most_tokens)


def routed_us(group, kernel, args, choice):
    """Median time of a call of experts on an idle device. Each call has a new routing, as in a model: the host has
    waited for it, and plans the call while the device waits.
    """
    shift = itertools.count()

    def launch():
        kernel(*(rolled(arg, next(shift)) if isinstance(arg, HostRouting) else arg for arg in args))

    with forced(choice):
        return median_of(group, launch, sleep_cycles=0)


def rolled(layout, shift):
    """A layout with as many rows for each expert, of other tokens."""
    count, ids = layout.routing[:, :1], layout.routing[:, 1:]
    routing = torch.cat((count, ids.roll(shift, 1)), 1)
    return type(layout)(routing, layout.topk, layout.experts, layout.group, layout.device)


def arguments(group: Group, shape: Shape, m: int):
    """Random arguments of the kernel of a shape."""
    dtype = overlapped.dtype_named(shape.dtype)

    def random(*sizes):
        return torch.randn(sizes, device="cuda").to(dtype)

    def weight(*sizes):
        *leading, n, k = sizes
        return random(*sizes) if shape.transpose_b else random(*leading, k, n).transpose(-2, -1)

    if shape.op == "mlp":
        up = weight(shape.inner * (2 if shape.activation == "swiglu" else 1), shape.k)
        rows = random(shapes.own_rows(m, group), shape.k)
        return rows, up, weight(shape.n, shape.inner), group.name, shape.activation, m
    if shape.op == "attention+reducescatter":
        heads, kv_heads, head_dim, causal = shape.attention
        q, k, v = (random(m, count // group.size * head_dim) for count in (heads, kv_heads, kv_heads))
        return q, k, v, weight(shape.n, shape.k), group.name, head_dim, causal
    if shape.attention:
        heads, kv_heads, head_dim, causal = shape.attention
        own = shapes.own_rows(m, group, shape.zigzag)
        q, k, v = (random(own, count * head_dim) for count in (heads, kv_heads, kv_heads))
        if shape.op == "attention-backward":
            lse = q.new_full((own, heads), math.log(m), dtype=torch.float32)
            grad, out = torch.randn_like(q), torch.randn_like(q)
            return grad, q, k, v, out, lse, group.name, head_dim, causal, shape.zigzag, m
        order = () if shape.op == "ulysses-attention" else (shape.zigzag,)
        return q, k, v, group.name, head_dim, causal, *order, m
    if shape.experts:
        return experts_arguments(group, shape, m, random, weight)
    w = weight(shape.n, shape.k)
    if shape.op == "allgather+gemm":
        return random(shapes.own_rows(m, group), shape.k), [w], group.name, m, shape.keeps
    if "alltoall" in shape.op:
        row = [m // group.size + (rank < m % group.size) for rank in range(group.size)]
        return random(m, shape.k), w, group.name, row * group.size
    if shape.normed:
        return random(m, shape.k), w, random(m, shape.n), random(shape.n), group.name, None, shape.norm_epsilon
    if shape.gathers:
        grad, x = random(m, shape.k), random(shapes.own_rows(m, group), shape.gathers)
        return grad, w, x, group, grad.t().mm
    return random(m, shape.k), w, group.name


def experts_arguments(group: Group, shape: Shape, m: int, random, weight):
    """Those of a kernel of experts: m tokens on each rank, for experts that are drawn uniformly."""
    (count, topk), ranks = shape.experts, group.size
    ids = torch.randint(count, (ranks, topk * m), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    topk_weights = random(m, topk).float()
    kinds = (ReplicatedSlots, SlicedSlots, Slots) if shape.capacity else (Slices, Layout)
    kind = next(kind for kind in kinds if shape.op in kind.OPS.values())
    if shape.capacity:
        own = ids[0 if kind is ReplicatedSlots else group.rank].view(m, topk).to(topk_weights.device)
        layout = kind(own, count, group, shape.capacity, m)
    else:
        routing = torch.cat((torch.full((ranks, 1), topk * m, dtype=torch.int32), ids), 1)
        layout = kind(routing, topk, count, group, topk_weights.device)
    held = len(layout.ends)  # experts of which this rank has weights
    if shape.inner:
        up = weight(held, shape.inner * (2 if shape.activation == "swiglu" else 1), shape.k)
        down = weight(held, shape.n, shape.inner)
        return random(m, shape.k), up, down, topk_weights, layout, shape.activation
    w = weight(held, shape.n, shape.k)
    if shape.op == layout.OPS["dispatch"]:
        return random(m, shape.k), w, layout
    return random(layout.received, shape.k), w, topk_weights, layout
