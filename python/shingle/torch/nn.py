"""Modules of tensor-parallel layers on the ops.

Inputs are [..., features]. With sequence_parallel, the dimension `sequence_dim` of activations between layers is
sharded: 0 for [sequence, batch, hidden] (Megatron) and for rows, 1 for [batch, sequence, hidden]. If the input is a
DTensor, so is the output.
"""

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..errors import InvalidArgument
from . import capacity as capacities
from . import functional
from .experts.slices import own_part
from .groups import find_group, name_of
from .parallel_styles import as_layout
from .shapes import check_experts
from .weight_gradients import ParallelLinear, WeightGradients


class _Parallel(nn.Module):
    """What the linear layers share. Weights are this rank's shard, [out, in]."""

    def __init__(self, group, sequence_parallel, sequence_dim, defer_weight_gradient):
        super().__init__()
        self.group = name_of(group)
        self.ranks = find_group(self.group).size
        self.sequence_parallel, self.sequence_dim = sequence_parallel, sequence_dim
        self.weight_gradients = WeightGradients(defer_weight_gradient)

    def _part(self, features, name):
        if features % self.ranks != 0:
            raise InvalidArgument(f"{name} = {features} must be a multiple of the {self.ranks} ranks of the group")
        return features // self.ranks

    def _make(self, out_features, in_features, bias, device, dtype):
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self):
        """Initialises as nn.Linear. Ranks that should differ need different seeds."""
        nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def backward_dw(self):
        """Computes weight gradients that backward deferred (defer_weight_gradient)."""
        self.weight_gradients.compute()

    def _with_weight_gradients(self, x, kind):
        """The layer on rows, with main_grad or deferred gradients. x's sequence dimension must be 0."""
        if self.sequence_parallel and self.sequence_dim != 0 and x.dim() > 2:
            raise InvalidArgument("main_grad and deferred weight gradients need sequence_dim = 0")
        out = ParallelLinear.apply(x.flatten(0, -2), self.weight, self.bias, kind, self.group, self.weight_gradients)
        return out if x.dim() == 2 else out.view(-1, *x.shape[1:-1], out.shape[-1])

    def extra_repr(self):
        out_features, in_features = self.weight.shape
        return f"{in_features} -> {out_features} on each of {self.ranks} ranks, sequence_parallel={self.sequence_parallel}"


def like(x, out, placement):
    """out as a DTensor of x's mesh, if x is a DTensor."""
    return DTensor.from_local(out, x.device_mesh, (placement,), run_check=False) if isinstance(x, DTensor) else out


def local(x, placement):
    """The local part of x in a layout. A plain tensor is taken to be that part."""
    return as_layout(x, x.device_mesh, placement) if isinstance(x, DTensor) else x


class ColumnParallelLinear(_Parallel):
    """y_r = x·W_rᵀ + b_r: each rank holds out_features / ranks rows of W and gets these columns of the result.

    sequence_parallel: x is this rank's part of the sequence, and is gathered. Else x is equal on all ranks.
    """

    def __init__(self, in_features, out_features, group=None, *, bias=True, sequence_parallel=False, sequence_dim=0,
                 defer_weight_gradient=False, device=None, dtype=None):  # fmt: skip
        super().__init__(group, sequence_parallel, sequence_dim, defer_weight_gradient)
        self._make(self._part(out_features, "out_features"), in_features, bias, device, dtype)

    def forward(self, x):
        rows = local(x, Shard(self.sequence_dim) if self.sequence_parallel else Replicate())
        if self.weight_gradients.applies_to(self.weight):
            return like(
                x, self._with_weight_gradients(rows, "gather" if self.sequence_parallel else "replicate"), Shard(-1)
            )
        if self.sequence_parallel:
            (out,) = functional.all_gather_gemm(rows, [self.weight], self.group, dim=self.sequence_dim)
        else:
            out = functional.replicated_gemm(rows, self.weight, self.group)
        return like(x, out if self.bias is None else out + self.bias.to(out.dtype), Shard(-1))

    @classmethod
    def from_linear(cls, linear, group=None, **options):
        """This rank's part of an nn.Linear that every rank has whole."""
        made = cls(linear.in_features, linear.out_features, group, bias=linear.bias is not None,
                   device=linear.weight.device, dtype=linear.weight.dtype, **options)  # fmt: skip
        rank = find_group(made.group).rank
        with torch.no_grad():
            made.weight.copy_(linear.weight.chunk(made.ranks, 0)[rank])
            if linear.bias is not None:
                made.bias.copy_(linear.bias.chunk(made.ranks, 0)[rank])
        return made


class RowParallelLinear(_Parallel):
    """y = Σ_r x_r·W_rᵀ + b: each rank holds in_features / ranks columns of W and of x.

    sequence_parallel: each rank gets its part of the sequence. Else every rank gets the whole result. The bias is equal
    on all ranks, and is added once.
    """

    def __init__(self, in_features, out_features, group=None, *, bias=True, sequence_parallel=False, sequence_dim=0,
                 defer_weight_gradient=False, device=None, dtype=None):  # fmt: skip
        super().__init__(group, sequence_parallel, sequence_dim, defer_weight_gradient)
        self._make(out_features, self._part(in_features, "in_features"), bias, device, dtype)

    def forward(self, x):
        rows = local(x, Shard(-1))
        placement = Shard(self.sequence_dim) if self.sequence_parallel else Replicate()
        if self.sequence_parallel and rows.shape[self.sequence_dim] % self.ranks != 0:
            raise InvalidArgument(
                f"x.shape = {tuple(rows.shape)}: the sequence must be a multiple of the {self.ranks} ranks of the group"
            )
        if self.weight_gradients.applies_to(self.weight):
            return like(
                x, self._with_weight_gradients(rows, "scatter" if self.sequence_parallel else "reduce"), placement
            )
        if self.sequence_parallel:
            out = functional.gemm_reduce_scatter(rows, self.weight, self.group, bias=self.bias, dim=self.sequence_dim)
        else:
            out = functional.gemm_all_reduce(rows, self.weight, self.group, bias=self.bias)
        return like(x, out, placement)

    @classmethod
    def from_linear(cls, linear, group=None, **options):
        """This rank's part of an nn.Linear that every rank has whole."""
        made = cls(linear.in_features, linear.out_features, group, bias=linear.bias is not None,
                   device=linear.weight.device, dtype=linear.weight.dtype, **options)  # fmt: skip
        with torch.no_grad():
            made.weight.copy_(linear.weight.chunk(made.ranks, 1)[find_group(made.group).rank])
            if linear.bias is not None:
                made.bias.copy_(linear.bias)
        return made


class SwiGluMLP(nn.Module):
    """silu(x·Gᵀ) * (x·Uᵀ) · Dᵀ: the MLP of Llama. Each rank holds inner / ranks columns of the hidden layer.

    sequence_parallel: x and the result are this rank's part of the sequence; forward is one op. Else both are whole on
    every rank.
    """

    def __init__(self, features, inner, group=None, *, sequence_parallel=True, sequence_dim=0, device=None, dtype=None):
        super().__init__()
        self.group = name_of(group)
        ranks = find_group(self.group).size
        if inner % ranks != 0:
            raise InvalidArgument(f"inner = {inner} must be a multiple of the {ranks} ranks of the group")
        if sequence_parallel and sequence_dim != 0:
            raise InvalidArgument(f"sequence_dim = {sequence_dim}: the mlp op scatters dimension 0")
        self.sequence_parallel = sequence_parallel
        self.gate_up = nn.Parameter(torch.empty(2 * inner // ranks, features, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(features, inner // ranks, device=device, dtype=dtype))
        for weight in (self.gate_up, self.down):
            nn.init.kaiming_uniform_(weight, a=5**0.5)

    def forward(self, x):
        rows = local(x, Shard(0) if self.sequence_parallel else Replicate())
        if self.sequence_parallel:
            return like(x, functional.mlp(rows, self.gate_up, self.down, self.group), Shard(0))
        gate, up = functional.replicated_gemm(rows, self.gate_up, self.group).chunk(2, dim=-1)
        return like(x, functional.gemm_all_reduce(nn.functional.silu(gate) * up, self.down, self.group), Replicate())

    @classmethod
    def from_linears(cls, gate, up, down, group=None, **options):
        """This rank's part of three nn.Linear without bias that every rank has whole."""
        made = cls(
            gate.in_features, gate.out_features, group, device=gate.weight.device, dtype=gate.weight.dtype, **options
        )
        rank, ranks = (at := find_group(made.group)).rank, at.size
        with torch.no_grad():
            made.gate_up.copy_(torch.cat([layer.weight.chunk(ranks, 0)[rank] for layer in (gate, up)]))
            made.down.copy_(down.weight.chunk(ranks, 1)[rank])
        return made


class Experts(nn.Module):
    """The rank-th part of `experts` experts, each activation(x·upᵀ)·downᵀ with a hidden layer of `inner` columns.

    tensor_parallel: the rank-th slice of each expert instead, `inner` / ranks columns of its hidden layer.

    x: this rank's tokens, whose number may differ between ranks. `up` and `down` are those of functional.moe. Their
    gradients are sums over the tokens of all ranks. All other parameters of a model are replicas, whose gradients are
    of own tokens: if you average those over the ranks, divide these by the ranks. DistributedDataParallel would give all
    ranks the experts of rank 0: name `up` and `down` in `_ddp_params_and_buffers_to_ignore` of the model.

    capacity, max_tokens: as of functional.moe. The tensor `dropped`, int64 [2] on the device, then counts what all calls
    of this rank dropped, also those that activation checkpointing repeats: choices without a slot, and ids that are no
    expert. It is no buffer, and not in the state_dict.
    """

    def __init__(self, experts, features, inner, group=None, *, activation="swiglu", tensor_parallel=False,
                 capacity=None, max_tokens=None, device=None, dtype=None):  # fmt: skip
        super().__init__()
        self.group, self.activation, self.tensor_parallel = name_of(group), activation, tensor_parallel
        capacities.declare(self, capacity, max_tokens, device)
        self.fans_in = features, inner
        ranks = find_group(self.group).size
        name, size = ("inner", inner) if tensor_parallel else ("experts", experts)
        if size % ranks != 0:
            raise InvalidArgument(f"{name} = {size} must be a multiple of the {ranks} ranks of the group")
        if tensor_parallel:
            inner //= ranks
        else:
            experts //= ranks
        rows = inner * (2 if activation == "swiglu" else 1)
        self.up = nn.Parameter(torch.empty(experts, rows, features, device=device, dtype=dtype))
        self.down = nn.Parameter(torch.empty(experts, features, inner, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self):
        """Initialises each expert as nn.Linear. Ranks need different seeds."""
        for weight, fan_in in zip((self.up, self.down), self.fans_in):
            bound = fan_in**-0.5
            nn.init.uniform_(weight, -bound, bound)
        if self.capacity is not None:
            self.dropped.zero_()

    def forward(self, x, topk_ids, topk_weights):
        """topk_ids, topk_weights: [..., topk] for x [..., features], as of functional.moe."""
        rows, ids, weights = (local(of, Shard(0)) for of in (x, topk_ids, topk_weights))
        out = capacities.moe(self, rows, self.up, self.down, ids, weights, self.group, activation=self.activation,
                             tensor_parallel=self.tensor_parallel)  # fmt: skip
        return like(x, out, Shard(0))

    @classmethod
    def from_weights(cls, w_up, w_down, group=None, *, activation="swiglu", **options):
        """This rank's part of weights that every rank has whole, of all experts."""
        check_experts(w_up.new_empty(0, w_up.shape[-1]), w_up, w_down, activation)
        experts, features, inner = w_down.shape
        made = cls(experts, features, inner, group, activation=activation, device=w_up.device, dtype=w_up.dtype,
                   **options)  # fmt: skip
        with torch.no_grad():
            own = own_part(w_up, w_down, find_group(made.group), activation, made.tensor_parallel)
            for parameter, part in zip((made.up, made.down), own):
                parameter.copy_(part)
        return made

    def extra_repr(self):
        experts, features, inner = self.down.shape
        return (
            f"{experts} experts on each rank, {features} -> {inner} -> {features}, activation={self.activation!r}, "
            f"tensor_parallel={self.tensor_parallel}"
        )


class MoE(nn.Module):
    """A mixture of experts: each token goes to the topk experts of the largest softmax(router(x)).

    normalize: the weights of a token sum to 1. shared: a module that every token passes too, such as a SwiGluMLP. The
    router is a replica: equal on all ranks. tensor_parallel, capacity, max_tokens: as of Experts; experts.dropped
    counts.
    """

    def __init__(self, features, inner, experts, topk, group=None, *, activation="swiglu", normalize=True, shared=None,
                 tensor_parallel=False, capacity=None, max_tokens=None, device=None, dtype=None):  # fmt: skip
        super().__init__()
        if not 1 <= topk <= experts:
            raise InvalidArgument(f"topk = {topk} is outside [1, {experts}], the number of experts")
        self.topk, self.normalize, self.shared = topk, normalize, shared
        self.router = nn.Linear(features, experts, bias=False, device=device, dtype=dtype)
        self.experts = Experts(experts, features, inner, group, activation=activation, tensor_parallel=tensor_parallel,
                               capacity=capacity, max_tokens=max_tokens, device=device, dtype=dtype)  # fmt: skip

    def forward(self, x, logits=None):
        """logits: [..., experts], in place of router(x)."""
        logits = self.router(x) if logits is None else logits
        wide = torch.promote_types(logits.dtype, torch.float32)
        topk_weights, topk_ids = logits.softmax(-1, dtype=wide).topk(self.topk, dim=-1)
        if self.normalize:
            topk_weights = topk_weights / topk_weights.sum(-1, keepdim=True)
        out = self.experts(x, topk_ids, topk_weights)
        return out if self.shared is None else out + self.shared(x)
