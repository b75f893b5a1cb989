"""Modules of experts whose capacity is declared: what they drop is counted on the device."""

import torch

from . import functional, shapes


def declare(module, capacity, max_tokens, device):
    """Gives a module its capacity. With one it has the buffer `dropped`, which sums that of functional.moe.

    The buffer is int64 [2]. It is no part of a checkpoint; zero it to count anew.
    """
    shapes.check_declared(capacity, max_tokens)
    module.capacity, module.max_tokens = capacity, max_tokens
    if capacity is not None:
        module.register_buffer("dropped", torch.zeros(2, dtype=torch.int64, device=device), persistent=False)


def moe(module, *given, **options):
    """functional.moe with the capacity of a module."""
    if module.capacity is None:
        return functional.moe(*given, **options)
    out, dropped = functional.moe(*given, **options, capacity=module.capacity, max_tokens=module.max_tokens)
    module.dropped += dropped
    return out
