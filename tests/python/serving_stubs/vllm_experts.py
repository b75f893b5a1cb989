"""The mixture-of-experts layers of vLLM 0.33.0."""

import enum
import types

from .experts import weighted_sums
from .modules import module

LAYERS = "vllm.model_executor.layers.fused_moe"


class MoEActivation(enum.Enum):
    SILU = "silu"
    GELU = "gelu"


class UnquantizedMoeBackend(enum.Enum):
    FLASHINFER_CUTLASS = "FlashInfer CUTLASS"
    TRITON = "TRITON"


class UnquantizedFusedMoEMethod:
    unquantized_backend, topk_indices_dtype, is_monolithic = UnquantizedMoeBackend.TRITON, None, False

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        return weighted_sums(x, layer.w13_weight, layer.w2_weight, topk_weights, topk_ids)


class Router:
    def __init__(self, top_k):
        self.top_k = top_k

    def select_experts(self, hidden_states, router_logits, topk_indices_dtype=None, *, input_ids=None):
        import torch

        weights, ids = router_logits.float().softmax(-1).topk(self.top_k)
        return weights / weights.sum(-1, keepdim=True), ids.to(topk_indices_dtype or torch.int32)


class ZeroExpertRouter(Router):
    pass


class RoutingSimulatorRouter(Router):
    pass


def layer_name_type():
    """A name that compiled graphs take as an input, so that layers share a graph."""
    from torch._library.opaque_object import register_opaque_type
    from torch._opaque_base import OpaqueBase

    class LayerName(OpaqueBase):
        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return isinstance(other, LayerName) and self.value == other.value

        def __hash__(self):
            return hash(self.value)

        def __fx_repr__(self):
            return f"LayerName({self.value!r})", {"LayerName": LayerName}

    LayerName.__qualname__ = "LayerName"  # schemas have it
    register_opaque_type(LayerName, typ="value", hoist=True)
    return LayerName


def install_experts():
    import torch
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.model_executor.custom_op import PluggableLayer

    LayerName = layer_name_type()

    class RoutedExperts(PluggableLayer):
        """A quant_config is the quant_method here."""

        def __init__(self, moe_config, quant_config, params_dtype, experts, inner, swiglu_limit=None,
                     apply_router_weight_on_input=False):  # fmt: skip
            super().__init__()
            self.activation, self.quant_method = moe_config.activation, quant_config or UnquantizedFusedMoEMethod()
            self.swiglu_limit, self.swiglu_alpha, self.swiglu_beta = swiglu_limit, None, None
            self.apply_router_weight_on_input, hidden = apply_router_weight_on_input, moe_config.hidden_dim
            for name, shape in (("w13_weight", (experts, 2 * inner, hidden)), ("w2_weight", (experts, hidden, inner))):
                weight = torch.empty(shape, dtype=params_dtype)
                setattr(self, name, torch.nn.Parameter(weight, requires_grad=False))

        def _ensure_moe_quant_config_init(self):
            pass

        def forward_modular(self, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None):
            return self.quant_method.apply(self, x, topk_weights, topk_ids, shared_experts, shared_experts_input)

    class MoERunner(PluggableLayer):
        def __init__(self, layer_name, moe_config, router, routed_experts, enable_dbo=False, gate=None,
                     shared_experts=None, shared_expert_gate=None, routed_input_transform=None,
                     routed_output_transform=None, routed_scaling_factor=1.0):  # fmt: skip
            super().__init__()
            self.layer_name, self.moe_config, self.router, self.gate = layer_name, moe_config, router, gate
            self.routed_experts, self.enable_dbo, self.shared_experts = routed_experts, enable_dbo, shared_experts
            self.shared_expert_gate, self.routed_scaling_factor = shared_expert_gate, routed_scaling_factor
            self.routed_input_transform = routed_input_transform
            self.routed_output_transform = routed_output_transform
            runner.layers[layer_name] = self

        def forward(self, hidden_states, router_logits, input_ids=None, shared_experts_input=None):
            given = hidden_states, router_logits, shared_experts_input, input_ids, LayerName(self.layer_name), 0
            out = torch.ops.vllm.moe_forward(*given)
            if self.routed_scaling_factor != 1:
                out *= self.routed_scaling_factor
            sums = self.moe_config.tp_size > 1 and not self.moe_config.skip_final_all_reduce
            return get_tp_group().all_reduce(out) if sums else out

        def _forward_impl(self, hidden_states, router_logits, shared_experts_input, input_ids=None):
            if self.gate is not None:
                router_logits, _ = self.gate(hidden_states)
            weights, ids = self.router.select_experts(hidden_states, router_logits, input_ids=input_ids)
            return self.routed_experts.forward_modular(hidden_states, weights, ids)

    module(f"{LAYERS}.activation", MoEActivation=MoEActivation)
    module(f"{LAYERS}.oracle.unquantized", UnquantizedMoeBackend=UnquantizedMoeBackend)
    module(f"{LAYERS}.unquantized_fused_moe_method", UnquantizedFusedMoEMethod=UnquantizedFusedMoEMethod)
    module(f"{LAYERS}.routed_experts", RoutedExperts=RoutedExperts)
    module(f"{LAYERS}.router.routing_simulator_router", RoutingSimulatorRouter=RoutingSimulatorRouter)
    module(f"{LAYERS}.router.zero_expert_router", ZeroExpertRouter=ZeroExpertRouter)
    module(f"{LAYERS}.layer", FusedMoEFactory=FusedMoEFactory)
    runner = module(
        f"{LAYERS}.runner.moe_runner", MoERunner=MoERunner, layers={}, LayerName=LayerName, _layer_name_type=LayerName,
        _resolve_layer_name=lambda name: name.value, get_layer_from_name=lambda name: runner.layers[name],
    )  # fmt: skip
    define_op(runner)


def FusedMoEFactory(num_experts, top_k, hidden_size, intermediate_size, params_dtype=None, quant_config=None,
                    tp_size=None, prefix="", router=None, activation="silu", has_bias=False, gate=None,
                    reduce_results=True, runner_args=None, routed_experts_args=None, **config):  # fmt: skip
    """config: fields of the FusedMoEConfig."""
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    ranks = tp_size or get_tp_group().world_size
    defaults = {
        "ep_size": 1, "dp_size": 1, "pcp_size": 1, "is_sequence_parallel": False, "is_lora_enabled": False,
        "hidden_dim_unpadded": hidden_size, "has_hash_routing": False,
    }  # fmt: skip
    moe_config = types.SimpleNamespace(
        tp_size=ranks, hidden_dim=hidden_size, has_bias=has_bias, activation=MoEActivation(activation),
        moe_parallel_config=types.SimpleNamespace(enable_eplb=False), skip_final_all_reduce=not reduce_results,
        **(defaults | config),
    )  # fmt: skip
    experts = RoutedExperts(
        moe_config, quant_config, params_dtype, num_experts, intermediate_size // ranks, **(routed_experts_args or {})
    )
    return MoERunner(prefix, moe_config, router or Router(top_k), experts, gate=gate, **(runner_args or {}))


def define_op(runner):
    import torch

    global library
    library = torch.library.Library("vllm", "FRAGMENT")

    def moe_forward(
        hidden_states: torch.Tensor, router_logits: torch.Tensor, shared_experts_input: torch.Tensor | None,
        input_ids: torch.Tensor | None, layer_name: runner._layer_name_type, hidden_dim_unpadded: int,
    ) -> torch.Tensor:  # fmt: skip
        layer = runner.get_layer_from_name(runner._resolve_layer_name(layer_name))
        return layer._forward_impl(hidden_states, router_logits, shared_experts_input, input_ids)

    library.define("moe_forward" + torch.library.infer_schema(moe_forward, mutates_args=["hidden_states"]))
    library.impl("moe_forward", moe_forward, "CPU")
    library._register_fake("moe_forward", lambda hidden_states, *_: torch.empty_like(hidden_states))
