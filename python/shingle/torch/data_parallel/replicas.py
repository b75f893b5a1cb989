"""Averages over replicas of a model: of DistributedDataParallel, and by the all-reduce hook of FSDP2.

    model = shingle.torch.ddp(DistributedDataParallel(model, gradient_as_bucket_view=True))
"""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import InvalidArgument
from . import buckets

SOURCE = "shingle.torch.ddp(model)"


def ddp(model):
    """Makes a DistributedDataParallel model average gradients by copy engines. Returns the model.

    Call it on all ranks alike, before torch.compile and before the first call of an op for tensor parallelism. Raises
    InvalidArgument for other models, and RuntimeError if the model has a communication hook already.
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidArgument(
            f"ddp: the model is of type {type(model).__name__}, not DistributedDataParallel; wrap it first"
        )
    buckets.watch(model.process_group, model.device, ["allreduce"], SOURCE)
    model.register_comm_hook(model.process_group, ddp_hook)
    return model


def ddp_hook(state, bucket):
    """Averages a bucket of gradients over the ranks, in fp32 in the order of ranks, rounded once.

    ddp() registers it. state: the process group of the model; None: the default one. bucket: DDP's. Returns the future
    that DDP expects.
    """
    process_group = dist.group.WORLD if state is None else state
    x = bucket.buffer()
    if bucket.index() == 0:
        buckets.watch(process_group, x.device, ["allreduce"], SOURCE)
    return buckets.reduce(x, process_group, 1.0 / process_group.size())


def all_reduce_hook(process_group):
    """A hook for FSDPModule.set_all_reduce_hook: averages reduced gradients over replicas of the sharded model.

    For models that are sharded over one mesh dimension, and replicated over `process_group`. HSDP itself calls c10d.
    """

    def hook(reduced):
        buckets.reduce(reduced, process_group, 1.0 / process_group.size()).wait()

    return hook
