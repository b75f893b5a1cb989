"""The communication of FSDP2 models: memory for buckets, all-gathers and reduce-scatters.

    fully_shard(model, ...)
    shingle.torch.fsdp(model)

Values, streams, prefetching and the life of buckets stay FSDP2's.
"""

import functools
import math

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, FullyShardedDataParallel

from ...errors import InvalidArgument, Unsupported
from ..counters import counts
from . import buckets
from .replicas import all_reduce_hook

try:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
        DefaultAllGather, DefaultReduceScatter, ProcessGroupAllocAllGather, ProcessGroupAllocReduceScatter,
    )  # fmt: skip
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
except ImportError as error:
    raise Unsupported(f"shingle.torch.fsdp needs PyTorch 2.11 or newer: {error}") from error

GATHERED = 2  # buckets that FSDP2 holds at a time: it copies one out of its buffer and gathers the next
NARROW = (torch.bfloat16, torch.float16)


class Gather(AllGather):
    """The all-gather of a parameter group."""

    def __init__(self, param_group):
        self.param_group = param_group

    def allocate(self, size, *, dtype, device):
        if torch.compiler.is_compiling():
            return torch.empty(*size, dtype=dtype, device=device)
        return buckets.empty_gathered(math.prod(size), dtype, device, self.param_group._all_gather_process_group)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        if torch.compiler.is_compiling():
            return DefaultAllGather()(output_tensor, input_tensor, group, async_op)
        return buckets.gather(output_tensor, input_tensor, group, async_op)


class Scatter(ReduceScatter):
    """The reduce-scatter of a parameter group.

    With reduce_dtype = fp32, gradients of bf16 or fp16 travel as they are and are summed in fp32: the result is as if
    they had been widened first, with half the bytes and half the memory.
    """

    def __init__(self, param_group):
        self.param_group = param_group
        self.gradients = None  # dtype of the gradients that FSDP2 is about to reduce; None: not known, or several
        self.shard = None  # elements of the output that belongs to the input allocated last

    def allocate(self, size, *, dtype, device):
        elements = math.prod(size)
        if self.shard == elements:
            self.shard = None
            return torch.empty(elements, dtype=dtype, device=device)
        group = self.param_group._reduce_scatter_process_group
        self.shard = elements // group.size()
        narrow = self.gradients if dtype == torch.float32 and self.gradients in NARROW else None
        if narrow is not None and not torch.compiler.is_compiling():
            if buckets.takes_narrow(elements, narrow, dtype, device, group):
                dtype = narrow
        return torch.empty(elements, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if torch.compiler.is_compiling():
            return DefaultReduceScatter()(output_tensor, input_tensor, group, op, async_op)
        return buckets.scatter(output_tensor, input_tensor, group, op, async_op)

    def watch(self):
        """Looks at the dtype of gradients before they are reduced: accumulated ones have reduce_dtype already."""
        post_backward = self.param_group.post_backward

        @functools.wraps(post_backward)
        def looking(*unused):
            self.gradients = dtype_of_gradients(self.param_group)
            return post_backward(*unused)

        self.param_group.post_backward = looking


def dtype_of_gradients(param_group):
    """The dtype of all gradients of a group; None if there are none, or several dtypes."""
    found = set()
    for parameter in param_group.fsdp_params:
        gradient = parameter.unsharded_accumulated_grad
        if gradient is None and hasattr(parameter, "_unsharded_param"):
            gradient = parameter._unsharded_param.grad
        if gradient is not None:
            found.add(gradient.dtype)
    return found.pop() if len(found) == 1 else None


OURS_OR_DEFAULT = (
    Gather, DefaultAllGather, ProcessGroupAllocAllGather, Scatter, DefaultReduceScatter, ProcessGroupAllocReduceScatter
)  # fmt: skip


def install(model, replicas=None):
    """As shingle.torch.fsdp()."""
    found = {}  # by parameter group, which several modules may share
    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel):
            raise InvalidArgument(
                f"fsdp: module {name!r} is a FullyShardedDataParallel (FSDP1); shard the model with fully_shard()"
            )
        if isinstance(module, FSDPModule):
            param_group = module._get_fsdp_state()._fsdp_param_group
            if param_group is not None and isinstance(param_group.mesh_info, FSDPMeshInfo):
                check(name, param_group)
                found.setdefault(param_group, []).append(module)
    if not found:
        raise InvalidArgument("fsdp: the model has no FSDPModule with parameters; call fully_shard() on it first")
    for param_group, modules in found.items():
        install_on(param_group, modules, replicas)
    make_room(found)
    return model


def check(name, param_group):
    if isinstance(param_group.offload_policy, CPUOffloadPolicy):
        raise Unsupported(
            f"fsdp: module {name!r} has CPUOffloadPolicy, so that its buckets wait for copies from the host; "
            "leave out the policy, or leave the model to FSDP2"
        )
    for comm in (param_group._all_gather_comm, param_group._reduce_scatter_comm):
        if not isinstance(comm, OURS_OR_DEFAULT):
            raise InvalidArgument(
                f"fsdp: module {name!r} has communication of its own, {type(comm).__name__}; "
                "leave out set_custom_all_gather() and set_custom_reduce_scatter()"
            )


def install_on(param_group, modules, replicas):
    if not isinstance(param_group._reduce_scatter_comm, Scatter):
        gather, scatter = Gather(param_group), Scatter(param_group)
        scatter.watch()
        for module in modules:
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(scatter)
        counts["fsdp.groups"] += 1
    if replicas is not None:
        for module in modules:
            module.set_all_reduce_hook(all_reduce_hook(replicas))


def make_room(param_groups):
    """Reserves registered memory for the buckets that FSDP2 holds gathered, and SMs of products."""
    sizes = {}
    for param_group in param_groups:
        meshes = [mesh for mesh in (param_group.mesh_info, param_group.post_forward_mesh_info) if mesh is not None]
        for process_group in {mesh.shard_process_group for mesh in meshes}:
            sizes.setdefault((process_group, param_group.device), []).append(gathered_bytes(param_group))
    for (process_group, device), of_group in sizes.items():
        buckets.reserve(process_group, device, sorted(of_group)[-GATHERED:])
        buckets.watch(process_group, device, ["allgather", "reducescatter"], "shingle.torch.fsdp(model)")


def gathered_bytes(param_group):
    """Bytes of the group's parameters as they are gathered."""
    size = 0
    for parameter in param_group.fsdp_params:
        dtype = param_group.mp_policy.param_dtype or parameter.sharded_param.dtype
        size += parameter.padded_sharded_param_size.numel() * dtype.itemsize
    return size * param_group.mesh_info.shard_mesh_size
