"""Experts on several ranks: the op `moe`, its kernels by mm + c10d and by contexts, and its gradients.

Routing: how ranks learn which expert gets which token, and where its rows lie. Slots: the same with a capacity, on the
device. Whole: how rows travel to experts that ranks hold whole. Slices: where rows lie, and how they travel, if each
rank has a slice of every expert. Sequential and overlapped: kernels with the same names and arguments, by either.
Kernels: what the ops call.
"""

from . import overlapped, sequential

__all__ = ["overlapped", "sequential"]
