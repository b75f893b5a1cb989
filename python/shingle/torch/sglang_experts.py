"""SGLang's mixture-of-experts layers that sum over the tensor-parallel ranks themselves: shingle.torch.fused_moe."""

import collections
import functools
import logging

import torch

from . import fused_moe
from .counters import counts
from .sglang import is_deterministic, logger

FUSED_MOE = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE"


def why_unserved(layer):
    """Why `moe` cannot be the experts of a layer; None if it can."""
    from sglang.srt.layers.moe import get_moe_a2a_backend
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    from sglang.srt.runtime_context import get_parallel

    config, method, ranks = layer.moe_runner_config, layer.quant_method, get_parallel().tp_group.world_size
    limits = config.gemm1_alpha, config.gemm1_clamp_limit, config.swiglu_limit
    return fused_moe.first_reason({
        "leave their sum to the model, as for the next norm": not layer.reduce_results,
        "have quantised weights": type(method) is not UnquantizedFusedMoEMethod,
        "have kernels other than Triton's, which keep the layout of weights":
            layer.runner_backend is None or not layer.runner_backend.is_triton(),
        "interleave the rows of gate and up": getattr(method, "w13_swiglu_interleaved", False),
        "do not have slices of all experts on all ranks, or other tokens on each": ranks == 1
            or layer.moe_ep_size > 1 or layer.moe_tp_size != ranks or not get_moe_a2a_backend().is_none(),
        "are not SwiGLU without bias and limits": config.activation != "silu" or not config.is_gated or layer.with_bias
            or any(limit is not None for limit in limits),
        "weigh inputs, scale outputs or do not sum choices": config.apply_router_weight_on_input or config.no_combine
            or config.routed_scaling_factor not in (None, 1),
        "have LoRA, or fetch weights from other ranks": "run_moe_core" in vars(layer) or layer._dwdp_bound,
    })  # fmt: skip


def forward(original, layer, hidden_states, topk_output, pre_quant_input=None):
    """Around FusedMoE.forward_impl. Compiled code stays with SGLang; its piecewise CUDA graphs call this outside."""
    from sglang.srt.layers.moe.topk import TopKOutputChecker
    from sglang.srt.runtime_context import get_parallel

    as_it_was = functools.partial(original, layer, hidden_states, topk_output, pre_quant_input)
    if torch.compiler.is_compiling() or why_unserved(layer) or is_deterministic():
        return as_it_was()
    if pre_quant_input is not None or not TopKOutputChecker.format_is_standard(topk_output):
        return as_it_was()
    group = get_parallel().tp_group.unique_name
    given = layer.w13_weight, layer.w2_weight, topk_output.topk_ids, topk_output.topk_weights, group
    out = fused_moe.forward(hidden_states, *given)
    if out is None:
        return as_it_was()
    counts["sglang.experts"] += 1
    return out


def report(model):
    """Logs how many layers of a model are served, and why others are not. Returns the number."""
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    reasons = [why_unserved(layer) for layer in model.modules() if isinstance(layer, FusedMoE)]
    served = reasons.count(None)
    others = collections.Counter(reason for reason in reasons if reason is not None)
    logger.log(
        logging.INFO if served else logging.WARNING,
        "SHINGLE_EXPERTS=1 serves %d of the %d mixture-of-experts layers of %s%s",
        served, len(reasons), type(model).__name__, "".join(f"; {count} {reason}" for reason, count in others.items()),
    )  # fmt: skip
    return served
