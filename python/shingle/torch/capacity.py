"""Modules of experts whose capacity is declared: what they drop is counted on the device."""

import torch

from . import functional, shapes


def declare(module, capacity, max_tokens, device):
    """Gives a module its capacity. With one it has the tensor `dropped`, which sums that of functional.moe.

    The tensor is int64 [2], and zero_() counts anew. It follows the module to the device of the next call. It is no
    buffer, because DistributedDataParallel would overwrite a buffer of each rank with that of rank 0. So no checkpoint
    has it either.
    """
    shapes.check_capacity(capacity, max_tokens)
    module.capacity, module.max_tokens = capacity, max_tokens
    if capacity is not None:
        module.dropped = torch.zeros(2, dtype=torch.int64, device=device)


def moe(module, *given, **options):
    """functional.moe with the capacity of a module."""
    if module.capacity is None:
        return functional.moe(*given, **options)
    out, dropped = functional.moe(*given, **options, capacity=module.capacity, max_tokens=module.max_tokens)
    if module.dropped.device != dropped.device:
        was = module.dropped
        module.dropped = torch.zeros_like(dropped, dtype=was.dtype) if was.is_meta else was.to(dropped.device)
    module.dropped += dropped
    return out
