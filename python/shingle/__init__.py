"""Shingle overlaps matrix products (GEMMs) with collectives. This package plans, proves, predicts and measures.

    import shingle

    plan = shingle.plan(op="gemm+allreduce", m="8K", n="8K", k=3584, world=8, machine="h200x8")
    print(shingle.verify(plan))
    for row in shingle.simulate(plan, machine="h200x8"):
        print(row.mechanism, row.overlapped_us, row.speedup)

Functions take the flags of the command line (`shingle plan --help`) as keyword arguments. Times are in microseconds.
Failures are exceptions of shingle.errors. Nothing here needs torch or a GPU. `shingle.vllm_pass` is the Inductor pass
of shingle.torch.vllm, which needs vLLM.
"""

import sys

from . import errors
from ._machine import Machine, profile
from ._plan import Plan, plan, plans
from ._predict import Prediction, Predictions, Simulation, simulate, tune
from ._program import info, version
from ._proof import Proof, ProofFailed, verify
from .errors import (
    CudaError, Error, InternalError, InvalidArgument, IoError, MpiError, NcclError, OutOfMemory, Timeout,
    Unsupported,
)  # fmt: skip

__all__ = [
    "CudaError", "Error", "InternalError", "InvalidArgument", "IoError", "Machine", "MpiError", "NcclError",
    "OutOfMemory", "Plan", "Prediction", "Predictions", "Proof", "ProofFailed", "Simulation", "Timeout",
    "Unsupported", "errors", "info", "plan", "plans", "profile", "simulate", "tune", "verify",
]  # fmt: skip


def __getattr__(name: str):
    if name == "__version__":
        return version()
    if name == "vllm_pass":
        from .torch.vllm import vllm_pass

        return vllm_pass
    raise AttributeError(f"module 'shingle' has no attribute '{name}'")


if "vllm" in sys.modules:
    # vLLM looks up shingle.vllm_pass in __dict__, before it runs plugins. __getattr__ would not be asked.
    try:
        from .torch.vllm import vllm_pass  # noqa: F401
    except (ImportError, errors.Unsupported) as _error:
        print(f"shingle: WARNING: no vllm_pass: {_error}", file=sys.stderr)
