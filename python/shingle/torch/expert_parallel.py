"""Expert parallelism and expert tensor parallelism for models of Transformers as they are."""

import functools
import sys

import torch
from torch import nn

from ..errors import InvalidArgument, Unsupported
from . import capacity as capacities
from . import functional, shapes
from .counters import counts
from .experts.slices import own_part
from .groups import find_group, name_of
from .parallel_styles import install

PARAMETERS = "gate_up_proj", "down_proj"


def expert_parallel(model, group=None, *, capacity=None, max_tokens=None):
    """Replaces the experts of each MoE block of a model by `moe`. Returns the number of replaced blocks.

    model: of Transformers 5.17 or newer, such as Mixtral, Qwen-MoE, OLMoE or DeepSeek; every rank has the same, whole.
    Each block keeps its router, shared experts and parameters' names. Of gate_up_proj and down_proj it keeps the
    rank-th part of the experts, so call this before an optimiser is made. group: a ProcessGroup, its name, or a 1-D
    DeviceMesh, whose ranks divide the experts; None: all ranks.

    Each rank then calls the model on its own tokens, all ranks equally often; numbers of tokens may differ. Gradients
    of experts are sums over all ranks' tokens, those of other parameters are of own tokens. DistributedDataParallel
    leaves the experts alone; its gradients are averages, so divide those of experts by the ranks.

    capacity, max_tokens: as of moe. The device then routes, so that CUDA graphs hold the model, and each block counts
    what it drops in `dropped`, int64 [2] on the device.

    Raises Unsupported, with the reasons, if nothing can be replaced. Raises InvalidArgument for a wrong capacity, or if
    the ranks do not divide the experts. Nothing is changed then.
    """
    return replace_experts(model, group, False, capacity, max_tokens)


def expert_tensor_parallel(model, group=None, *, capacity=None, max_tokens=None):
    """As expert_parallel(), but each rank keeps a slice of every expert: `moe` with tensor_parallel.

    Of gate_up_proj and down_proj a rank keeps its part of the hidden layer, which the ranks must divide. All ranks then
    do the same work, whatever the routing. Gradients of experts are sums over all ranks' tokens, too.
    """
    return replace_experts(model, group, True, capacity, max_tokens)


def replace_experts(model, group, tensor_parallel, capacity, max_tokens):
    """What expert_parallel() and expert_tensor_parallel() do."""
    shapes.check_capacity(capacity, max_tokens)
    at, served, refused = find_group(name_of(group)), {}, []
    caller = "expert_tensor_parallel" if tensor_parallel else "expert_parallel"
    for name, module in model.named_modules():
        if not holds_experts(module):
            continue
        if reason := why_unserved(module) or why_not_whole(module):
            refused.append(f"{name}: {reason}")
        else:
            served[name] = module
    if not served:
        raise Unsupported(
            f"{caller} replaced nothing: "
            + ("; ".join(refused) or f"{type(model).__name__} has no module with gate_up_proj and down_proj of experts")
        )
    for name, module in served.items():
        experts, _, inner = weights_of(module)[1].shape
        size, what = (inner, "columns of the hidden layers") if tensor_parallel else (experts, "experts")
        if size % at.size != 0:
            raise InvalidArgument(f"group has {at.size} ranks, which do not divide the {size} {what} of {name}")
    for module in served.values():
        with torch.no_grad():
            parts = own_part(*weights_of(module), at, "swiglu", tensor_parallel)
        for name, part in zip(PARAMETERS, parts):
            own = (part.transpose(1, 2) if module.is_transposed else part).clone(memory_format=torch.contiguous_format)
            setattr(module, name, nn.Parameter(own, requires_grad=getattr(module, name).requires_grad))
        capacities.declare(module, capacity, max_tokens, module.down_proj.device)
        install(module, run_counted, tensor_parallel, at.name)
        counts["transformers.experts"] += 1
    if refused:
        print(f"shingle: WARNING: {caller} left {'; '.join(refused)}", file=sys.stderr)
    # DistributedDataParallel would give all ranks the experts of rank 0.
    ignored = [f"{name}.{of}" for name in served for of in PARAMETERS]
    model._ddp_params_and_buffers_to_ignore = [*getattr(model, "_ddp_params_and_buffers_to_ignore", []), *ignored]
    return len(served)


def holds_experts(module):
    """True for modules that transformers.integrations.use_experts_implementation has decorated."""
    return hasattr(module, "is_transposed") and hasattr(module, "down_proj")


def why_unserved(module):
    """Why `moe` cannot be the experts of a module; None if it can."""
    if not getattr(module, "has_gate", True):
        return "its experts have no gate"
    for name in ("has_bias", "has_post_expert_norm"):
        if getattr(module, name, False):
            return f"its experts have {name}"
    if not getattr(module, "is_concatenated", True):
        return "rows of gate and up are interleaved"
    if type(module)._apply_gate.__name__ != "_default_apply_gate":
        return "it has a gate of its own"
    if (activation := type(getattr(module, "act_fn", None)).__name__) not in ("SiLU", "SiLUActivation"):
        return f"its activation is {activation}, not SiLU"
    for name in PARAMETERS:
        if getattr(module, name).dim() != 3 or getattr(module, name).dtype not in shapes.DTYPES:
            return f"{name} is no [experts, out, in] of a floating dtype"
    return None


def why_not_whole(module):
    """Why a rank has not all experts of a module; None if it has."""
    if "forward" in vars(module):
        return "its forward is replaced already"
    for name in PARAMETERS:
        if type(getattr(module, name)) is not nn.Parameter:
            return f"{name} is no plain Parameter: it is sharded already"
    return None


def run_counted(module, tensor_parallel, *given):
    """run_experts() with the capacity of the module."""
    moe = functools.partial(capacities.moe, module, tensor_parallel=tensor_parallel)
    return run_experts(module, *given, moe=moe)


def weights_of(module):
    """gate_up_proj and down_proj as [experts, out, in]."""
    of = module.gate_up_proj, module.down_proj
    return tuple(w.transpose(1, 2) for w in of) if module.is_transposed else of


def run_experts(module, group, hidden_states, top_k_index, top_k_weights, moe=functional.moe):
    """In place of the forward of a module's experts. Its parameters are those of this rank."""
    topk_weights = top_k_weights.to(shapes.wide(hidden_states.dtype))
    return moe(hidden_states, *weights_of(module), top_k_index, topk_weights, group)
