"""SGLang: row- and column-parallel layers of prefill on the ops.

    SHINGLE_SGLANG=1 python -m sglang.launch_server --model-path MODEL --tp 4 --enable-layernorm-sp

With sequence parallelism, its layers are all_gather_gemm and gemm_reduce_scatter, where SGLang would call
torch.ops.symm_mem. Else row-parallel layers that sum over the ranks themselves are gemm_all_reduce, and if
SHINGLE_EXPERTS=1, such mixture-of-experts layers are `moe` (shingle.torch.sglang_experts). Layers that leave their sum
to the next norm stay with SGLang, as do calls with fewer than min_m or more than max_m rows (shingle.torch.configure).
`register` is the plugin.
"""

import functools
import logging
import os
import sys

import torch
import torch.nn.functional as F

from . import row_parallel as layers
from .counters import counts, expect
from .functional import all_gather_gemm, gemm_reduce_scatter
from .groups import Registry, registries
from .settings import settings

logger = logging.getLogger("sglang.shingle")
SEQUENCE_PARALLEL = "sglang.srt.layers.layernorm_sp"
ROW_PARALLEL = "sglang.srt.layers.linear.RowParallelLinear"
MODEL_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"


def is_deterministic():
    """True if results must not depend on the batch, as the choice of a mechanism does."""
    from sglang.srt.runtime_context import get_exec

    return get_exec().deterministic.enable_deterministic_inference


def is_served(layernorm_sp, layer, rows):
    if not layernorm_sp.sp_fused_matmul_eligible(layer) or getattr(layer, "_sp_use_cutlass", False):
        return False
    # SGLang compiles with dynamic rows, which a comparison would restrict. The ops then choose at run time.
    return torch.compiler.is_compiling() or (settings.min_m <= rows <= settings.max_m and not is_deterministic())


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


def find_coordinator(name):
    """SGLang's GroupCoordinator of a name, or None."""
    parallel_state = sys.modules.get("sglang.srt.distributed.parallel_state")
    reference = parallel_state and parallel_state._groups.get(name)
    return reference and reference()


def find_process_group(name):
    coordinator = find_coordinator(name)
    return coordinator and coordinator.device_group


registries.append(Registry(find_process_group, lambda x, name: find_coordinator(name).all_reduce(x)))


def can_sum(layer):
    """True if a row-parallel layer sums unquantised products over the tensor-parallel ranks itself."""
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    elsewhere = layer.tp_group is not group or layer.use_dp_attention_reduce or layer.use_decode_attn_tp
    return group.world_size > 1 and not elsewhere and layers.sums(layer, UnquantizedLinearMethod)


def forward(original, layer, x, skip_all_reduce=False, forward_batch=None, output_tensor=None):
    """Around RowParallelLinear.forward. Compiled code stays with SGLang, and so do calls that do not sum here."""
    as_it_was = functools.partial(original, layer, x, skip_all_reduce, forward_batch, output_tensor)
    if torch.compiler.is_compiling() or not layers.is_worth(x) or skip_all_reduce or output_tensor is not None:
        return as_it_was()
    from sglang.srt.runtime_context import get_forward, get_parallel

    state = get_forward()
    if state.sp_active or state.mlp_reduce_scatter or not can_sum(layer) or is_deterministic():
        return as_it_was()
    count("row_parallel")
    return layers.forward(layer, x, get_parallel().tp_group.unique_name)


def after_load(_, runner):
    """After ModelRunner.load_model: says how many layers are served."""
    from sglang.srt.layers.linear import RowParallelLinear

    found = [layer for layer in runner.model.modules() if isinstance(layer, RowParallelLinear)]
    served = sum(map(can_sum, found))
    experts = report_experts(runner.model)
    if served or experts:
        expect_calls(("sglang.",))
    logger.log(
        logging.INFO if served else logging.WARNING,
        "SHINGLE_SGLANG=1 serves %d of the %d row-parallel layers of %s. Others have quantised weights, or leave their "
        "sum to the next norm; --enable-layernorm-sp serves these, if SGLang accepts it for the model.",
        served, len(found), type(runner.model).__name__,
    )  # fmt: skip


def report_experts(model):
    if not settings.serve_experts:
        return 0
    from . import sglang_experts

    return sglang_experts.report(model)


def expect_calls(prefixes):
    expect(prefixes, "SHINGLE_SGLANG=1", f"Prefill needs at least SHINGLE_MIN_M = {settings.min_m} tokens.")


@functools.cache
def serve_sums():
    """Hooks that import too much for processes without a model."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{ROW_PARALLEL}.forward", forward, HookType.AROUND)
    if settings.serve_experts:
        from . import sglang_experts

        HookRegistry.register(f"{sglang_experts.FUSED_MOE}.forward_impl", sglang_experts.forward, HookType.AROUND)
    HookRegistry.register(f"{MODEL_RUNNER}.load_model", after_load, HookType.AFTER)
    HookRegistry.apply_hooks()


def after_start(_, **__):
    """After initialize_layernorm_sp, which runs once in each worker, before it loads the model."""
    from sglang.srt.layers import layernorm_sp

    if layernorm_sp.layernorm_sp_enabled():
        expect_calls(("sglang.", "overlapped.", "sequential."))  # the last two by the ops, also in compiled code
    else:
        serve_sums()


def register():
    """Entry point of SGLang's plugins. It does nothing unless SHINGLE_SGLANG=1."""
    if os.environ.get("SHINGLE_SGLANG", "0") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{SEQUENCE_PARALLEL}.column_parallel_g_matmul", column_parallel, HookType.AROUND)
    HookRegistry.register(f"{SEQUENCE_PARALLEL}.row_parallel_gbar_matmul", row_parallel, HookType.AROUND)
    HookRegistry.register(f"{SEQUENCE_PARALLEL}.initialize_layernorm_sp", after_start, HookType.AFTER)
