"""The mixture-of-experts layers of SGLang 0.5.23."""

import enum
import sys
import types
import typing

from .experts import weighted_sums
from .modules import module

LAYERS = "sglang.srt.layers.moe"


class Backend(enum.Enum):
    """MoeRunnerBackend, and MoeA2ABackend."""

    NONE = "none"
    TRITON = "triton"
    FLASHINFER_CUTLASS = "flashinfer_cutlass"

    def is_triton(self):
        return self is Backend.TRITON

    def is_none(self):
        return self is Backend.NONE


class StandardTopKOutput(typing.NamedTuple):
    topk_weights: object
    topk_ids: object
    router_logits: object


class BypassedTopKOutput(StandardTopKOutput):
    pass


class TopKOutputChecker:
    @staticmethod
    def format_is_standard(topk_output):
        return type(topk_output) is StandardTopKOutput


class UnquantizedFusedMoEMethod:
    w13_swiglu_interleaved = False

    def apply(self, layer, x, topk_output):
        return weighted_sums(x, layer.w13_weight, layer.w2_weight, topk_output.topk_weights, topk_output.topk_ids)


def install_experts():
    """Call it when the layers are there."""
    import torch
    from sglang.srt.runtime_context import get_parallel

    class FusedMoE(torch.nn.Module):
        def __init__(self, num_experts, hidden_size, intermediate_size, layer_id, top_k=None, params_dtype=None,
                     reduce_results=False, activation="silu", apply_router_weight_on_input=False, no_combine=False,
                     routed_scaling_factor=None, gemm1_alpha=None, gemm1_clamp_limit=None, swiglu_limit=None,
                     with_bias=False, is_gated=True, quant_method=None):  # fmt: skip
            super().__init__()
            ranks = get_parallel().tp_group.world_size
            self.moe_ep_size, self.moe_tp_size, self.with_bias = 1, ranks, with_bias
            self.reduce_results = reduce_results
            self.quant_method = quant_method or UnquantizedFusedMoEMethod()
            self.runner_backend, self._dwdp_bound = Backend.TRITON, False
            self.moe_runner_config = types.SimpleNamespace(
                activation=activation, is_gated=is_gated, apply_router_weight_on_input=apply_router_weight_on_input,
                no_combine=no_combine, routed_scaling_factor=routed_scaling_factor, gemm1_alpha=gemm1_alpha,
                gemm1_clamp_limit=gemm1_clamp_limit, swiglu_limit=swiglu_limit,
            )  # fmt: skip
            inner = intermediate_size // ranks
            for name, *shape in (("w13_weight", 2 * inner, hidden_size), ("w2_weight", hidden_size, inner)):
                weight = torch.empty(num_experts, *shape, dtype=params_dtype)
                setattr(self, name, torch.nn.Parameter(weight, requires_grad=False))

        def forward(self, hidden_states, topk_output, pre_quant_input=None):
            return self.forward_impl(hidden_states, topk_output, pre_quant_input=pre_quant_input)

        def forward_impl(self, hidden_states, topk_output, pre_quant_input=None):
            out = self.run_moe_core(hidden_states, topk_output)
            sums = self.reduce_results and (self.moe_tp_size > 1 or self.moe_ep_size > 1)
            return get_parallel().tp_group.all_reduce(out) if sums else out

        def run_moe_core(self, hidden_states, topk_output):
            return self.quant_method.apply(self, hidden_states, topk_output)

    moe = module(LAYERS, a2a_backend=Backend.NONE, get_moe_a2a_backend=lambda: moe.a2a_backend)
    module(
        f"{LAYERS}.topk", TopKOutputChecker=TopKOutputChecker, StandardTopKOutput=StandardTopKOutput,
        BypassedTopKOutput=BypassedTopKOutput,
    )  # fmt: skip
    module(f"{LAYERS}.fused_moe_triton.layer", FusedMoE=FusedMoE)
    sys.modules["sglang.srt.layers.quantization.unquant"].UnquantizedFusedMoEMethod = UnquantizedFusedMoEMethod
