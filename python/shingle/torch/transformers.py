"""Tensor parallelism of Transformers on the ops.

    shingle.torch.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")

Then "rowwise" and "colwise" of every tp_plan are Shingle's: o_proj and down_proj are gemm_all_reduce. Quantised layers
and features that the ranks do not divide stay with Transformers.

Experts: with DistributedConfig(ep_size=…, ep_implementation="shingle") MoE blocks are `moe`, and each rank loads its
own experts. shingle.torch.expert_parallel does the same to a model that is loaded.

Context parallelism: register_attention(), model.set_attn_implementation("shingle"), then shingle.torch.context_parallel.
"""

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..errors import Unsupported
from . import parallel_styles as styles
from .counters import counts, expect
from .expert_parallel import run_experts, why_unserved

try:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES, ColwiseParallel, RowwiseParallel
except ImportError as error:
    raise Unsupported(f"shingle.torch.transformers needs transformers 5.17 or newer: {error}") from error
try:
    from transformers.distributed.expert_parallel import EPImplementationInterface
except ImportError:  # DistributedConfig has no ep_implementation
    EPImplementationInterface = None


def is_served(module, mesh):
    plain = type(module) is nn.Linear and not getattr(module, "_hf_quantized_needs_local_tp", False)
    return plain and mesh.ndim == 1 and styles.is_even(module, mesh)


class OverlappedRowwise(RowwiseParallel):
    """x sharded in its last dimension to the whole sum: gemm_all_reduce."""

    def install_forward(self, module, mesh):
        if not is_served(module, mesh):
            return super().install_forward(module, mesh)
        counts["transformers.rowwise"] += 1
        return styles.install(module, styles.rowwise, mesh, self.output_layouts, self.use_local_output)


class OverlappedColwise(ColwiseParallel):
    """Replicated x to its columns. Backward is gemm_all_reduce; without gradients nothing communicates."""

    def install_forward(self, module, mesh):
        if not is_served(module, mesh):
            return super().install_forward(module, mesh)
        counts["transformers.colwise"] += 1
        return styles.install(module, colwise, mesh, self.input_layouts, self.use_local_output)


def colwise(module, mesh, input_layout, use_local_output, x):
    if torch.is_grad_enabled() or not use_local_output:
        return styles.colwise(module, mesh, input_layout, use_local_output, x)
    bias = None if module.bias is None else styles.local(module.bias)
    return nn.functional.linear(styles.as_layout(x, mesh, input_layout), styles.local(module.weight), bias)


class OverlappedExperts:
    """An EPImplementation of Transformers: `moe` over the ranks of ep_mesh. Ranks of tp_mesh hold the same tokens."""

    def __init__(self, experts, ep_mesh, tp_mesh):
        if reason := why_unserved(experts):
            raise Unsupported(f"ep_implementation = 'shingle' cannot serve {type(experts).__name__}: {reason}")
        self.experts, self.group, self.tp_mesh = experts, ep_mesh.get_group().group_name, tp_mesh
        counts["transformers.experts"] += 1

    def __call__(self, *given):
        """hidden_states, top_k_index, top_k_weights of all experts to the results."""
        if self.tp_mesh.size() == 1:
            return run_experts(self.experts, self.group, *given)
        # A token that several ranks hold is sent by one of them.
        whole = [DTensor.from_local(x, self.tp_mesh, (Replicate(),), run_check=False) for x in given]
        own = (x.redistribute(self.tp_mesh, (Shard(0),)).to_local() for x in whole)
        out = run_experts(self.experts, self.group, *own)
        shape = whole[0].shape
        return DTensor.from_local(out, self.tp_mesh, (Shard(0),), shape=shape, stride=(shape[1], 1)).full_tensor()


def register():
    """Replaces the styles "rowwise" and "colwise" for models that are loaded later. Adds ep_implementation "shingle".

    counters() counts the layers. A warning at exit says if there were none.
    """
    expect("transformers.", "transformers.register()", "Load the model after it, with a tp_plan, on several ranks.")
    ALL_PARALLEL_STYLES.register(
        "rowwise", OverlappedRowwise(input_layouts=Shard(-1), output_layouts=Replicate(), use_local_output=True)
    )
    ALL_PARALLEL_STYLES.register(
        "colwise", OverlappedColwise(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=True)
    )
    if EPImplementationInterface is not None:
        EPImplementationInterface.register("shingle", OverlappedExperts)


def register_attention():
    """Adds the attention "shingle": scaled_dot_product_attention without a mask, as context_parallel needs it.

    Transformers makes no mask for an attention that it does not know, so tokens are causal or all seen; none is padding.
    Packed sequences are context_parallel's cu_seqlens, and position_ids begin anew with each.
    """
    AttentionInterface.register("shingle", attention_forward)


def attention_forward(module, query, key, value, attention_mask, cu_seq_lens_q=None, **options):
    if cu_seq_lens_q is not None:
        raise Unsupported("cu_seq_lens_q is of all tokens: pass it to context_parallel(cu_seqlens=…), not to the model")
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
