"""The communication hook of DistributedDataParallel, and the all-reduce hook of FSDP2.

    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    model.register_comm_hook(None, shingle.torch.ddp_hook)  # or a process group instead of None
"""

import torch.distributed as dist

from . import buckets


def ddp_hook(state, bucket):
    """Averages a bucket of gradients over the ranks, in fp32 in the order of ranks, rounded once.

    state: the process group of the model; None: the default one. bucket: DDP's. Returns the future that DDP expects.
    """
    process_group = dist.group.WORLD if state is None else state
    x = bucket.buffer()
    if bucket.index() == 0:
        buckets.watch(process_group, x.device, ["allreduce"], "shingle.torch.ddp_hook")
    return buckets.reduce(x, process_group, 1.0 / process_group.size())


def all_reduce_hook(process_group):
    """A hook for FSDPModule.set_all_reduce_hook: averages reduced gradients over replicas of the sharded model.

    For models that are sharded over one mesh dimension, and replicated over `process_group`. HSDP itself calls c10d.
    """

    def hook(reduced):
        buckets.reduce(reduced, process_group, 1.0 / process_group.size()).wait()

    return hook
