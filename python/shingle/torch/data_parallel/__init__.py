"""Data parallelism: collectives of FSDP2 and DDP by copy engines. See shingle.torch.data_parallel.buckets."""

from .replicas import all_reduce_hook, ddp, ddp_hook

__all__ = ["all_reduce_hook", "ddp", "ddp_hook", "fsdp"]


def fsdp(model, *, replicas=None):
    """Makes an FSDP2 model gather parameters and reduce gradients by copy engines. Returns the model.

    model: any part of it called fully_shard(). Call it on all ranks alike, before the first step or later; with
    torch.compile before or after it. replicas: a process group whose ranks hold copies of the sharded model; gradients
    are then averaged over it, too, after they are reduced. Models with a mesh of two dimensions (HSDP) do that by c10d.

    Raises InvalidArgument if no part is an FSDPModule, or if one has custom communication. Raises Unsupported with
    CPUOffloadPolicy, and if PyTorch is older than 2.11. A warning at exit says if engines moved nothing.
    """
    from . import fsdp2  # when it is used: it reads what PyTorch calls internal

    return fsdp2.install(model, replicas)
