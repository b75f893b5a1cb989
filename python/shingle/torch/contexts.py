"""The context of each process group on CUDA, and its operators. Made at first use, which is collective."""

import threading

import torch
import torch.distributed as dist

from ..context import Context, World
from ..errors import Timeout, Unsupported
from . import native
from .choices import Shape
from .groups import Group, find_group, name_of
from .settings import settings


CONTIGUOUS, ZIGZAG = 0, 2  # shingle_row_order of the C interface


def roles(shape: Shape):
    """Matrices of a call, in the order in which kernels pass them."""
    if shape.op == "mlp":
        return "a", "b", "down", "out"
    if shape.op == "moe":
        return "a", "b", "down", "topk_weights", "out"
    if shape.op == "grouped-gemm+alltoall":
        return "a", "b", "topk_weights", "out"
    if shape.op == "attention+reducescatter":
        return "a", "keys", "values", "b", "out"
    if shape.op == "attention-backward":
        return "a", "keys", "values", "grad", "attended", "lse", "out", "keys_grad", "values_grad"
    if shape.attention:
        return "a", "keys", "values", "out", *(["out_lse"] if shape.returns_lse else [])
    found = ["a", "b"]
    if shape.bias:
        found.append("bias")
    if shape.norm_epsilon is not None:
        return *found, "residual", "norm_weight", "out", "sum"
    return *found, "out"


def make_world(group: Group, device: int):
    return World(
        backend="cuda", ranks=group.size, rank=group.rank, device=device, timeout_us=settings.timeout_us,
        allgather=store_allgather(group),
    )  # fmt: skip


class GroupContext:
    """A world and a context of a process group on the current device, and the calls of declared operators."""

    def __init__(self, group: Group, device: int):
        self.group, self.device = group, device
        self.context = Context(
            make_world(group, device), mechanism=settings.mechanism, workers=settings.workers,
            timeout_us=settings.timeout_us,
        )  # fmt: skip
        self.calls = {}

    def declare(self, shape: Shape):
        """Declares an operator with settings.max_m. Collective."""
        normed = shape.norm_epsilon is not None
        heads, kv_heads, head_dim, causal = shape.attention or (0, 0, 0, False)
        experts, topk = shape.experts or (0, 0)
        op = self.context.declare(
            shape.op, m=settings.max_m, n=shape.n, k=shape.k, dtype=shape.dtype, inner=shape.inner,
            activation=shape.activation, transpose_b=shape.transpose_b, bias=shape.bias, norm=normed, residual=normed,
            norm_epsilon=shape.norm_epsilon or 0, heads=heads, kv_heads=kv_heads, head_dim=head_dim, causal=causal,
            returns_lse=shape.returns_lse, row_order=ZIGZAG if shape.zigzag else CONTIGUOUS, experts=experts, topk=topk,
            mechanism=shape.mechanism,
        )  # fmt: skip
        self.calls[shape] = call = op.prepare([(self.group.rank, role) for role in roles(shape)], streams=1)
        call.max_m, call.mechanism, call.context = op.max_m, op.mechanism, self.context
        call.gathers_in_order = op.gathers_in_order
        return call


_contexts: dict[tuple[dist.ProcessGroup, int], GroupContext] = {}
_making = threading.Lock()  # backward declares from autograd's thread


def find_call(group: Group, shape: Shape, m: int, device: int):
    """The prepared Call of an operator, for m rows. First use makes the context and declares the operator: collective.

    Raises Unsupported under CUDA graph capture if the operator is not declared yet.
    """
    found = _contexts.get((group.process_group, device))
    call = found and found.calls.get(shape)
    if call and m <= call.max_m:
        return call
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            f"{shape.op} with n = {shape.n}, k = {shape.k} is used for the first time in a CUDA graph capture; "
            "call shingle.torch.warmup first, or run the model once before the capture"
        )
    with _making:
        found = _contexts.get((group.process_group, device))
        if found is None:
            _contexts[group.process_group, device] = found = GroupContext(group, device)
        call = found.calls.get(shape)  # another thread may have declared it meanwhile
        return call if call and m <= call.max_m else found.declare(shape)


def release(group=None):
    """Releases the contexts of a group, or of all groups. Destroy CUDA graphs that hold their calls first.

    group: a ProcessGroup, its group_name, or a 1-D DeviceMesh; None: all. Collective.
    """
    only = None if group is None else find_group(name_of(group)).process_group
    for key in [key for key in _contexts if only is None or key[0] is only]:
        found = _contexts.pop(key)
        found.context.close()
        found.context.world.close()
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
