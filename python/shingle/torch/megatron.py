"""Tensor-parallel layers of Megatron-core on the ops.

    from shingle.torch import megatron
    spec = megatron.overlapped(get_gpt_layer_local_spec(...))   # for GPTModel(transformer_layer_spec=spec)

Column- and row-parallel linear layers of the spec become Shingle's, with the same parameters, checkpoints and results.
With sequence_parallel they are all_gather_gemm and gemm_reduce_scatter, else gemm_all_reduce. Weights with main_grad
get their gradient there in fp32. Experts, gathered outputs, weights of other layers and deferred embedding gradients
stay with Megatron.
"""

import dataclasses

from ..errors import InvalidArgument, Unsupported
from . import functional
from .counters import counts
from .groups import find_group, name_of
from .weight_gradients import ParallelLinear, WeightGradients

try:
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.tensor_parallel import layers
    from megatron.core.tensor_parallel.mappings import scatter_to_tensor_model_parallel_region
except ImportError as error:
    raise Unsupported(f"shingle.torch.megatron needs megatron-core 0.16 or newer: {error}") from error


def apply(layer, kind, x):
    """The layer on x [sequence, batch, in], without bias. kind: as of ParallelLinear."""
    group, rows = name_of(layer.tp_group), x.flatten(0, -2)
    if layer.weight_gradients.applies_to(layer.weight):
        out = ParallelLinear.apply(rows, layer.weight, None, kind, group, layer.weight_gradients)
    elif kind == "gather":
        (out,) = functional.all_gather_gemm(rows, [layer.weight], group)
    else:
        op = {"replicate": functional.replicated_gemm, "scatter": functional.gemm_reduce_scatter,
              "reduce": functional.gemm_all_reduce}[kind]  # fmt: skip
        out = op(rows, layer.weight, group)
    return out.view(-1, *x.shape[1:-1], out.shape[-1])


def is_served(layer):
    """True if the ops serve a layer: of several ranks, and with nothing of Megatron's that they lack."""
    config = layer.config
    return not (
        layer.explicit_expert_comm
        or layer.weight is None
        or config.defer_embedding_wgrad_compute
        or config._cpu_offloading_context is not None
        or find_group(name_of(layer.tp_group)).size == 1
    )


class ColumnParallelLinear(layers.ColumnParallelLinear):
    """Megatron's, by all_gather_gemm or replicated_gemm."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.weight_gradients = WeightGradients()
        counts["megatron.column_parallel"] += 1

    def forward(self, input_, weight=None, runtime_gather_output=None):
        gathers = self.gather_output if runtime_gather_output is None else runtime_gather_output
        if weight is not None or gathers or self.disable_grad_reduce or not is_served(self):
            return super().forward(input_, weight, runtime_gather_output)
        out = apply(self, "gather" if self.sequence_parallel else "replicate", input_)
        if self.skip_bias_add:
            return out, self.bias
        return (out if self.bias is None else out + self.bias.to(out.dtype)), None


class RowParallelLinear(layers.RowParallelLinear):
    """Megatron's, by gemm_reduce_scatter or gemm_all_reduce."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.weight_gradients = WeightGradients()
        counts["megatron.row_parallel"] += 1

    def forward(self, input_):
        if not is_served(self):
            return super().forward(input_)
        if not self.input_is_parallel:
            input_ = scatter_to_tensor_model_parallel_region(input_, group=self.tp_group)
        out = apply(self, "scatter" if self.sequence_parallel else "reduce", input_)
        # The bias is added here, as in Megatron, which sums its gradient over the parts of a sequence.
        if self.skip_bias_add:
            return out, self.bias
        return (out if self.bias is None else out + self.bias.to(out.dtype)), None


TWINS = {layers.ColumnParallelLinear: ColumnParallelLinear, layers.RowParallelLinear: RowParallelLinear}


class SpecProvider(LocalSpecProvider):
    """A BackendSpecProvider: LocalSpecProvider with Shingle's linear layers, for functions that take a backend."""

    def column_parallel_linear(self):
        return ColumnParallelLinear

    def row_parallel_linear(self):
        return RowParallelLinear


def overlapped(spec):
    """A copy of a ModuleSpec whose local linear layers are Shingle's.

    Raises InvalidArgument if it has none: layers of Transformer Engine are not replaced.
    """
    found = []
    made = replaced(spec, found)
    if not found:
        raise InvalidArgument(
            "the spec has no local column- or row-parallel linear layer; build it with get_gpt_layer_local_spec()"
        )
    return made


def replaced(part, found):
    """A part of a spec with Shingle's layers, which are appended to `found`."""
    if isinstance(part, type):
        if part in TWINS or part in TWINS.values():
            found.append(part)
        return TWINS.get(part, part)
    if dataclasses.is_dataclass(part):
        changes = {field.name: replaced(getattr(part, field.name), found) for field in dataclasses.fields(part)}
        return dataclasses.replace(part, **changes)
    if isinstance(part, list):
        return [replaced(item, found) for item in part]
    return part
