"""Experts on several ranks: the op `moe`, its kernels by mm + c10d and by contexts, and its gradients.

Routing: how ranks learn which expert gets which token, and where its rows lie. Sequential and overlapped: kernels with
the same names and arguments. Kernels: what the op calls, with either of the two.
"""

from . import overlapped, sequential

__all__ = ["overlapped", "sequential"]
