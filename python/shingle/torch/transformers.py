"""Tensor parallelism of Transformers on the ops.

    shingle.torch.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, tp_plan="auto")

Then "rowwise" and "colwise" of every tp_plan are Shingle's: o_proj and down_proj are gemm_all_reduce. Quantised layers
and features that the ranks do not divide stay with Transformers.

Context parallelism: register_attention(), model.set_attn_implementation("shingle"), then shingle.torch.context_parallel.
"""

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard

from ..errors import Unsupported
from . import parallel_styles as styles
from .counters import counts, expect

try:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.integrations.tensor_parallel import ALL_PARALLEL_STYLES, ColwiseParallel, RowwiseParallel
except ImportError as error:
    raise Unsupported(f"shingle.torch.transformers needs transformers 5.17 or newer: {error}") from error


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


def register():
    """Replaces the styles "rowwise" and "colwise" for models that are loaded later. counters() counts the layers.

    A warning at exit says if there were none.
    """
    expect("transformers.", "transformers.register()", "Load the model after it, with a tp_plan, on several ranks.")
    ALL_PARALLEL_STYLES.register(
        "rowwise", OverlappedRowwise(input_layouts=Shard(-1), output_layouts=Replicate(), use_local_output=True)
    )
    ALL_PARALLEL_STYLES.register(
        "colwise", OverlappedColwise(input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=True)
    )


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
