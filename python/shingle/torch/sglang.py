"""SGLang: its sequence-parallel layers on the ops.

    SHINGLE_SGLANG=1 python -m sglang.launch_server --model-path MODEL --tp 4 --enable-layernorm-sp

Column- and row-parallel layers of prefill are then all_gather_gemm and gemm_reduce_scatter, where SGLang would call
torch.ops.symm_mem. `register` is the plugin. Layers that SGLang keeps off its fused path stay with SGLang, and all
calls with fewer than min_m or more than max_m rows (shingle.torch.configure).
"""

import os
import sys

import torch
import torch.nn.functional as F

from .counters import counts, expect
from .functional import all_gather_gemm, gemm_reduce_scatter
from .settings import settings

LAYERS = "sglang.srt.layers.layernorm_sp"


def is_served(layernorm_sp, layer, rows):
    if not layernorm_sp.sp_fused_matmul_eligible(layer) or getattr(layer, "_sp_use_cutlass", False):
        return False
    # SGLang compiles with dynamic rows, which a comparison would restrict. The ops then choose at run time.
    return torch.compiler.is_compiling() or settings.min_m <= rows <= settings.max_m


def count(name):
    if not torch.compiler.is_compiling():
        counts[f"sglang.{name}"] += 1


def column_parallel(original, layer, x, bias):
    """Around column_parallel_g_matmul: this rank's rows to all rows · weightᵀ, without SGLang's padding."""
    from sglang.srt.layers import layernorm_sp
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if not is_served(layernorm_sp, layer, x.shape[0] * group.world_size):
        return original(layer, x, bias)
    count("column_parallel")
    (out,) = all_gather_gemm(x, [layer.weight], group.device_group)
    return out[: layernorm_sp.sp_num_tokens()]


def row_parallel(original, layer, x, bias):
    """Around row_parallel_gbar_matmul: own rows of Σ x·weightᵀ, padded to a multiple of the ranks."""
    from sglang.srt.layers import layernorm_sp
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    if not is_served(layernorm_sp, layer, x.shape[0]):
        return original(layer, x, bias)
    count("row_parallel")
    return gemm_reduce_scatter(F.pad(x, (0, 0, 0, -x.shape[0] % group.world_size)), layer.weight, group.device_group)


def after_start(result, **_):
    """After initialize_layernorm_sp, which runs once in each worker."""
    from sglang.srt.layers import layernorm_sp

    if layernorm_sp.layernorm_sp_enabled():
        counted = ("sglang.", "overlapped.", "sequential.")  # the last two by the ops, also in compiled code
        expect(counted, "SHINGLE_SGLANG=1", f"Prefill needs at least SHINGLE_MIN_M = {settings.min_m} tokens.")
    else:
        print(
            "shingle: WARNING: SHINGLE_SGLANG=1 does nothing: start SGLang with --enable-layernorm-sp, and a model "
            "that supports it", file=sys.stderr,
        )  # fmt: skip


def register():
    """Entry point of SGLang's plugins. It does nothing unless SHINGLE_SGLANG=1."""
    if os.environ.get("SHINGLE_SGLANG", "0") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{LAYERS}.column_parallel_g_matmul", column_parallel, HookType.AROUND)
    HookRegistry.register(f"{LAYERS}.row_parallel_gbar_matmul", row_parallel, HookType.AROUND)
    HookRegistry.register(f"{LAYERS}.initialize_layernorm_sp", after_start, HookType.AFTER)
