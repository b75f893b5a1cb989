"""Shingle for PyTorch: ops that overlap GEMM and communication. See shingle.torch.functional."""

from .choices import table
from .context_parallel import (
    context_parallel,
    context_parallel_shard,
    context_parallel_unshard,
    set_rotate_method,
)
from .contexts import release
from .counters import counters
from .data_parallel import all_reduce_hook, ddp, ddp_hook, fsdp
from .expert_parallel import expert_parallel, expert_tensor_parallel
from .functional import (
    all_gather_gemm,
    all_to_all_gemm,
    attention_reduce_scatter,
    gemm_all_reduce,
    gemm_all_to_all,
    gemm_reduce_scatter,
    mlp,
    moe,
    replicated_gemm,
    ring_attention,
    ulysses_attention,
)
from .patch import patch
from .settings import configure
from .warming import warmup

__all__ = [
    "all_gather_gemm",
    "all_reduce_hook",
    "all_to_all_gemm",
    "attention_reduce_scatter",
    "configure",
    "context_parallel",
    "context_parallel_shard",
    "context_parallel_unshard",
    "counters",
    "ddp",
    "ddp_hook",
    "expert_parallel",
    "expert_tensor_parallel",
    "fsdp",
    "gemm_all_reduce",
    "gemm_all_to_all",
    "gemm_reduce_scatter",
    "mlp",
    "moe",
    "patch",
    "release",
    "replicated_gemm",
    "ring_attention",
    "set_rotate_method",
    "table",
    "ulysses_attention",
    "warmup",
]
