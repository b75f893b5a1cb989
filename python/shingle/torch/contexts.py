"""The contexts of each process group on CUDA, and their operators. Made at first use, which is collective.

A group has a context for each purpose, on one world. Calls of one context run in their order, so that a gather of the
next layer's weights and sums of the last layer's gradients need one each.
"""

import contextlib
import threading
import weakref

import torch
import torch.distributed as dist

from ..context import Context, World
from ..errors import Timeout, Unsupported
from . import native
from .choices import BUCKETS, Shape
from .groups import Group, find_group, name_of
from .settings import settings


CONTIGUOUS, ZIGZAG = 0, 2  # shingle_row_order of the C interface
PRODUCTS, INPUTS, GATHERS, SUMS = "products", "inputs", "gathers", "sums"  # purposes of contexts
# SMs that products leave to collectives by copy engines. Their kernels of one warp, which wait, share one. Passes that
# sum do not wait for other ranks: they complete on one, however many they take.
ENGINE_WORKERS = 2
RUN_ONCE = "call shingle.torch.warmup first, or run the model once before the capture"


def purpose_of(shape: Shape):
    if shape.op not in BUCKETS:
        return PRODUCTS
    if shape.op != "allgather":
        return SUMS
    return INPUTS if shape.gathers else GATHERS


def roles(shape: Shape):
    """Matrices of a call, in the order in which kernels pass them."""
    if shape.op == "mlp":
        return "a", "b", "down", "out"
    if shape.experts:
        down = ["down"] if shape.inner else []
        sums = not shape.op.endswith("+grouped-gemm")
        found = ["a", "b", *down, *(["topk_weights"] if sums else []), "out"]
        if shape.capacity:
            found += ["topk_ids", "dropped"] if sums else ["topk_ids", "dropped", "counts"]
        return found
    if shape.op == "attention+reducescatter":
        return "a", "keys", "values", "b", "out"
    if shape.op == "attention-backward":
        return "a", "keys", "values", "grad", "attended", "lse", "out", "keys_grad", "values_grad"
    if shape.attention:
        return "a", "keys", "values", "out", *(["out_lse"] if shape.returns_lse else [])
    found = ["a", "b"]
    if shape.bias:
        found.append("bias")
    if shape.op in BUCKETS:
        return "a", "out"
    if shape.norm_epsilon is not None:
        return *found, "residual", "norm_weight", "out", "sum"
    return *found, "out"


def m_step_of(shape: Shape):
    """Every m of a call is a multiple of it: shards of gathered and of scattered buckets are equal."""
    return shape.ranks if shape.op in ("allgather", "reducescatter") else 1


def make_world(group: Group, device: int):
    return World(
        backend="cuda", ranks=group.size, rank=group.rank, device=device, timeout_us=settings.timeout_us,
        allgather=store_allgather(group),
    )  # fmt: skip


class GroupContext:
    """A context of a process group on the current device for a purpose, and the calls of declared operators."""

    def __init__(self, group: Group, device: int, purpose: str, world):
        self.group, self.device, self.purpose = group, device, purpose
        registered = reserved(group, device, purpose)
        workers = workers_of_products(device) if purpose == PRODUCTS else 0
        self.context = Context(
            world, mechanism=settings.mechanism if purpose == PRODUCTS else None, workers=workers,
            timeout_us=deadline_us(group, torch.device("cuda", device), purpose), registered_bytes=registered,
        )  # fmt: skip
        self.registered_bytes, self.workers, self.calls = registered, workers, {}
        self.heap = self.address = None  # registered memory: the tensors of buckets in it, or all of it for inputs
        self.in_graphs = False  # CUDA graphs hold addresses of the registered memory

    def declare(self, shape: Shape, m: int):
        """Declares an operator for up to m rows. Collective."""
        normed = shape.norm_epsilon is not None
        heads, kv_heads, head_dim, causal = shape.attention or (0, 0, 0, False)
        experts, topk = shape.experts or (0, 0)
        op = self.context.declare(
            shape.op, m=m, n=shape.n, k=shape.k, dtype=shape.dtype, inner=shape.inner,
            activation=shape.activation, transpose_b=shape.transpose_b and self.purpose == PRODUCTS, bias=shape.bias,
            norm=normed, residual=normed, norm_epsilon=shape.norm_epsilon or 0, heads=heads, kv_heads=kv_heads,
            head_dim=head_dim, causal=causal, returns_lse=shape.returns_lse, experts=experts, topk=topk,
            capacity=shape.capacity, f32_sums=shape.f32_sums, scale=shape.scale, m_step=m_step_of(shape),
            row_order=ZIGZAG if shape.zigzag else CONTIGUOUS, mechanism=shape.mechanism,
            workers=beside_engines(self.device, self.workers) if shape.gathers and self.purpose == PRODUCTS else 0,
        )  # fmt: skip
        self.calls[shape] = call = op.prepare([(self.group.rank, role) for role in roles(shape)], streams=1)
        call.max_m, call.mechanism, call.context = op.max_m, op.mechanism, self.context
        call.gathers_in_order, call.served = op.gathers_in_order, {}
        return call

    def is_outgrown(self):
        in_use = self.heap is not None and self.heap.used
        grown = self.registered_bytes < reserved(self.group, self.device, self.purpose)
        return grown and not in_use and not self.in_graphs

    def close(self):
        self.context.close()


_contexts: dict[tuple[dist.ProcessGroup, int, str], GroupContext] = {}
_worlds: dict[tuple[dist.ProcessGroup, int], World] = {}
# By group, then by device and purpose of a context. Weak, as groups._known.
_registered_bytes: weakref.WeakKeyDictionary[dist.ProcessGroup, dict] = weakref.WeakKeyDictionary()
_with_buckets: set[int] = set()  # devices on which collectives of buckets run beside products
_making = threading.RLock()  # backward declares from autograd's thread


def expect_buckets(device: int):
    """Contexts of products on a device leave SMs to collectives of buckets from now on.

    Raises Unsupported if one that holds all SMs is there. After release() the same call passes.
    """
    _with_buckets.add(device)
    for (_, on, purpose), made in _contexts.items():
        if on == device and purpose == PRODUCTS and not made.workers:
            raise Unsupported(
                "a context of products may hold all SMs of this GPU, so that collectives of buckets beside it could "
                "wait for ever; call shingle.torch.fsdp() or ddp() before the first call of an op, or "
                "call shingle.torch.release() once and repeat the step"
            )


def deadline_us(group: Group, device: torch.device, purpose: str):
    """ContextOptions::timeout_us. Ranks of data parallelism may be far apart, as while one saves a checkpoint: buckets
    wait as long as those of c10d.
    """
    if settings.timeout_us or purpose in (PRODUCTS, INPUTS):
        return settings.timeout_us
    return group.process_group._get_backend(device).options._timeout.total_seconds() * 1e6


def workers_of_products(device: int):
    """ContextOptions::workers of a context of products: settings.workers, or what buckets leave."""
    return beside_engines(device, settings.workers) if device in _with_buckets else settings.workers


def beside_engines(device: int, workers: int):
    """SMs of products while copy engines carry out collectives: `workers` (0: all), at most what these leave."""
    most = torch.cuda.get_device_properties(device).multi_processor_count - ENGINE_WORKERS
    return min(workers or most, most)


def reserve(group: Group, device: int, size: int, purpose=GATHERS):
    """The context of a group for a purpose will have at least this much registered memory."""
    _registered_bytes.setdefault(group.process_group, {})[device, purpose] = max(size, reserved(group, device, purpose))


def reserved(group: Group, device: int, purpose=GATHERS):
    return _registered_bytes.get(group.process_group, {}).get((device, purpose), 0)


def find_context(group: Group, device: int, purpose: str):
    """The context of a group for a purpose. First use makes it: collective.

    One is made anew if more registered memory was reserved since, none of it is in use, and no CUDA graph holds it; its
    operators are declared again. Raises Unsupported under CUDA graph capture if there is none yet.
    """
    key = group.process_group, device, purpose
    with _making:
        made = _contexts.get(key)
        if torch.cuda.is_current_stream_capturing():
            if made is None:
                raise Unsupported(f"a context for {purpose} is used for the first time in a CUDA graph capture; {RUN_ONCE}")
            return made
        if made is not None and not made.is_outgrown():
            return made
        if made is not None:
            _contexts.pop(key).close()
        world = _worlds.get(key[:2])
        if world is None:
            world = _worlds[key[:2]] = make_world(group, device)
        _contexts[key] = GroupContext(group, device, purpose, world)
        for shape, call in made.calls.items() if made else ():
            _contexts[key].declare(shape, call.max_m)
        return _contexts[key]


@contextlib.contextmanager
def graphs_that_end():
    """CUDA graphs that are captured here do not live on."""
    held = [made for made in _contexts.values() if made.in_graphs]
    try:
        yield
    finally:
        for made in _contexts.values():
            made.in_graphs = made in held


def find_call(group: Group, shape: Shape, m: int, device: int):
    """The prepared Call of an operator, for m rows. First use makes the context and declares the operator: collective.

    Raises Unsupported under CUDA graph capture if the operator is not declared yet.
    """
    purpose = purpose_of(shape)
    found = _contexts.get((group.process_group, device, purpose))
    call = found and found.calls.get(shape)
    if call and m <= call.max_m:
        return call
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            f"{shape.op} with n = {shape.n}, k = {shape.k} is used for the first time in a CUDA graph capture; {RUN_ONCE}"
        )
    with _making:
        found = find_context(group, device, purpose)
        call = found.calls.get(shape)  # another thread may have declared it meanwhile
        largest = rounded_up(m, m_step_of(shape)) if purpose in (GATHERS, SUMS) else largest_m(shape)
        return call if call and m <= call.max_m else found.declare(shape, largest)


def largest_m(shape: Shape):
    """settings.max_m as a multiple of the shape's step."""
    step = m_step_of(shape)
    return -(-settings.max_m // step) * step


def rounded_up(m: int, m_step: int):
    """m to a multiple of an eighth of its power of two: buckets that grow a little need no new staging memory."""
    step = m_step << max((m // m_step).bit_length() - 4, 0)
    return -(-m // step) * step


def release(group=None):
    """Releases the contexts of a group, or of all groups. Destroy CUDA graphs that hold their calls first.

    group: a ProcessGroup, its group_name, or a 1-D DeviceMesh; None: all. Collective.
    """
    only = None if group is None else find_group(name_of(group)).process_group
    for owners in (_contexts, _worlds):  # contexts before their worlds
        for key in [key for key in owners if only is None or key[0] is only]:
            owners.pop(key).close()
    native.forget()


def store_allgather(group: Group):
    """An all-gather of bytes over the default store, for the ranks of a group."""
    prefix = group.process_group.group_name  # group.name may be that of several groups, one a pipeline stage
    store = dist.PrefixStore(f"shingle/{prefix}", dist.distributed_c10d._get_default_store())

    def allgather(own: bytes) -> bytes:
        # Each rank counts its own turns in the group, so keys agree without asking.
        turn = store.add(f"turns/{group.rank}", 1)
        store.set(f"{turn}/{group.rank}", own)
        try:
            return b"".join(store.get(f"{turn}/{rank}") for rank in range(group.size))
        except dist.DistStoreError as error:
            raise Timeout(f"a rank of group {group.name!r} did not join its context: {error}") from error

    return allgather
