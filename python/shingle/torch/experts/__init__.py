"""Experts on several ranks: the op `moe`, its kernels by mm + c10d and by contexts, and its gradients.

Routing: how ranks learn which expert gets which token, and where its rows lie. Slices: where they lie if each rank has
a slice of every expert. Slots: both with a capacity, on the device. Whole and sliced: how rows travel to experts that
ranks hold whole, or a slice of. Sequential and overlapped: kernels with the same names and arguments, by either.
Kernels: what the ops call.
"""

from . import overlapped, sequential

__all__ = ["overlapped", "sequential"]
