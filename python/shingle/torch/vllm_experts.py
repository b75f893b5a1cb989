"""vLLM's mixture-of-experts layers, in compiled code and without: shingle.torch.fused_moe.

vLLM's op moe_forward gives the part of a rank, and vllm.all_reduce follows. In compile ranges that vllm_pass serves,
`rewrite` makes both one op, moe_forward_all_reduce. A graph may serve several layers, so this op decides at run time
whether Shingle or vLLM computes. `register` also makes vLLM build the class of this file in place of its own, which
runs layers without torch.compile.
"""

import functools
import operator

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from vllm import envs
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor import custom_op
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulatorRouter
from vllm.model_executor.layers.fused_moe.router.zero_expert_router import ZeroExpertRouter
from vllm.model_executor.layers.fused_moe.runner import moe_runner
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from . import fused_moe, inductor, ops, row_parallel
from .vllm import expect_matches, logger, vllm_pass

ARGUMENTS = "hidden_states", "router_logits", "shared_experts_input", "input_ids", "layer_name", "hidden_dim_unpadded"


def why_unserved(runner):
    """Why `moe` cannot be the experts of a layer; None if it can."""
    experts, config = runner.routed_experts, runner.moe_config
    limits = experts.swiglu_limit, experts.swiglu_alpha, experts.swiglu_beta
    sizes = config.ep_size, config.dp_size, config.pcp_size
    return fused_moe.first_reason({
        "its weights are quantised": type(experts.quant_method) is not UnquantizedFusedMoEMethod,
        "its kernels are not Triton's, which keep the layout of weights":
            getattr(experts.quant_method, "unquantized_backend", None) is not UnquantizedMoeBackend.TRITON,
        "LoRA is on": config.is_lora_enabled,
        "its ranks do not have slices of all experts, or not the same tokens":
            config.tp_size == 1 or any(size > 1 for size in sizes) or config.is_sequence_parallel,
        "the sum of its shared experts shares the all-reduce":
            runner.shared_experts is not None or runner.shared_expert_gate is not None,
        "it leaves its sum over the ranks to the model": config.skip_final_all_reduce,
        "its experts are not SwiGLU without bias and limits":
            experts.activation is not MoEActivation.SILU or config.has_bias or any(x is not None for x in limits),
        "it weighs inputs, not outputs": experts.apply_router_weight_on_input,
        "it transforms or scales inputs or outputs": runner.routed_input_transform is not None
            or runner.routed_output_transform is not None or runner.routed_scaling_factor != 1,
        "it pads the hidden size": config.hidden_dim != config.hidden_dim_unpadded,
        "its router may choose an expert twice for a token":
            config.has_hash_routing or isinstance(runner.router, RoutingSimulatorRouter),
        "its experts move, are substituted or are none": config.moe_parallel_config.enable_eplb
            or type(experts) is not RoutedExperts or isinstance(runner.router, ZeroExpertRouter),
        "dual batch overlap is on": runner.enable_dbo,
    })  # fmt: skip


@functools.cache
def say(reason):
    """Logs what becomes of a kind of layer, once."""
    if reason is None:
        logger.info("Shingle serves mixture-of-experts layers")
    else:
        logger.warning("SHINGLE_EXPERTS=1 leaves mixture-of-experts layers to vLLM: %s", reason)


class MoERunner(moe_runner.MoERunner):
    """vLLM's layer, by fused_moe for batches between min_m and max_m of shingle.torch.configure."""

    any_served = False

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.unserved = why_unserved(self)
        MoERunner.any_served |= self.unserved is None
        say(self.unserved)

    def forward(self, hidden_states, router_logits, input_ids=None, shared_experts_input=None):
        if torch.compiler.is_compiling() or self.unserved or not row_parallel.is_worth(hidden_states):
            return super().forward(hidden_states, router_logits, input_ids, shared_experts_input)
        expect_matches()
        return sum_experts(self, hidden_states, router_logits, input_ids, get_tp_group().unique_name)


def sum_experts(runner, x, router_logits, input_ids, group):
    """What the forward of a served layer returns: the sum over all ranks."""
    experts = runner.routed_experts
    experts._ensure_moe_quant_config_init()
    if runner.gate is not None:
        router_logits, _ = runner.gate(x)
    weights, ids = runner.router.select_experts(
        hidden_states=x, router_logits=router_logits, topk_indices_dtype=experts.quant_method.topk_indices_dtype,
        input_ids=input_ids,
    )  # fmt: skip
    if not envs.VLLM_BATCH_INVARIANT:
        out = fused_moe.forward(x, experts.w13_weight, experts.w2_weight, ids, weights, group)
        if out is not None:
            vllm_pass.count("experts")
            return out
    part = experts.forward_modular(x=x, topk_weights=weights, topk_ids=ids)
    return torch.ops.vllm.all_reduce(part, group)


def moe_forward_all_reduce(
    hidden_states: torch.Tensor, router_logits: torch.Tensor, shared_experts_input: torch.Tensor | None,
    input_ids: torch.Tensor | None, layer_name: moe_runner._layer_name_type, hidden_dim_unpadded: int, group: str,
) -> torch.Tensor:  # fmt: skip
    """vllm.moe_forward and the all-reduce of its result. Other layers of a graph may not be served."""
    runner = moe_runner.get_layer_from_name(moe_runner._resolve_layer_name(layer_name))
    x, router_logits = hidden_states.contiguous(), router_logits.contiguous()
    if isinstance(runner, MoERunner) and not runner.unserved:
        return sum_experts(runner, x, router_logits, input_ids, group)
    # vLLM's op may overwrite hidden_states; this one may not.
    part = runner._forward_impl(x.clone(), router_logits, shared_experts_input, input_ids)
    return torch.ops.vllm.all_reduce(part, group)


def fake(hidden_states, router_logits, shared_experts_input, input_ids, layer_name, hidden_dim_unpadded, group):
    columns = hidden_dim_unpadded or hidden_states.shape[-1]
    return hidden_states.new_empty((*hidden_states.shape[:-1], columns))


def define_op():
    """Defines the op for inference. Its layer_name has the type that vLLM's op takes, which has no strides."""
    name = moe_forward_all_reduce.__name__
    schema = torch.library.infer_schema(moe_forward_all_reduce, mutates_args=())
    ops.library.define(name + schema, tags=(torch.Tag.flexible_layout,))
    for device in ("CPU", "CUDA"):
        ops.library.impl(name, moe_forward_all_reduce, device)
    torch.library.register_fake(f"shingle::{name}", fake, lib=ops.library)


def rewrite(graph, node, collective):
    """An all_reduce of all that moe_forward gives becomes moe_forward_all_reduce."""
    part = node.args[0]
    experts = part.args[0] if part.target is operator.getitem and part.args[1] == 0 else None
    if not MoERunner.any_served or experts is None or inductor.only_user(part) is not node:
        return None
    found = experts.target is auto_functionalized and experts.args[0] is torch.ops.vllm.moe_forward.default
    if not found or any(user.users for user in experts.users if user is not part):  # of hidden_states, overwritten
        return None
    args = *map(experts.kwargs.get, ARGUMENTS), node.args[collective.group]
    with graph.inserting_before(node):
        made = graph.call_function(inductor.ours.moe_forward_all_reduce.default, args)
    made.meta["val"] = node.meta["val"]
    for old in (node, part):
        old.replace_all_uses_with(made)
    for old in (node, *experts.users, experts):
        graph.erase_node(old)
    return "moe_all_reduce"


def register():
    """Call it once a process, before models are built."""
    if not issubclass(moe_runner.MoERunner, custom_op.PluggableLayer):
        logger.warning("SHINGLE_EXPERTS=1 does nothing: the MoERunner of this vLLM cannot be replaced")
    elif MoERunner.__name__ in custom_op.op_registry_oot:
        logger.warning("SHINGLE_EXPERTS=1 does nothing: another plugin replaces MoERunner too")
    else:
        define_op()
        moe_runner.MoERunner.register_oot(MoERunner)
        vllm_pass.more.append(inductor.Collective(torch.ops.vllm.all_reduce.default, rewrite, group=1))
