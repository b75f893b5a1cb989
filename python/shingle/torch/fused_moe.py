"""Mixture-of-experts layers of vLLM and SGLang, both called FusedMoE: `moe` with a capacity.

With tensor parallelism these servers give each rank a slice of every expert, and all ranks the same tokens: `moe` with
tensor_parallel and replicated. An expert has as many slots as the largest batch has tokens. Routers choose an expert at
most once a token, so no choice is dropped.
"""

from . import experts, row_parallel, shapes
from .experts.slots import ReplicatedSlots
from .functional import moe
from .groups import find_group
from .settings import settings

ACTIVATION = "swiglu"


def first_reason(reasons):
    """The first text of {text: whether it holds} that holds, or None."""
    return next((reason for reason, holds in reasons.items() if holds), None)


def forward(x, w13, w2, topk_ids, topk_weights, group):
    """The sums of tokens [tokens, hidden] over their experts and all ranks; None if this would not be overlapped.

    x, topk_ids, topk_weights: as of moe, equal on all ranks. w13, w2: this rank's slices, [experts, 2·inner, hidden]
    with gate rows first and [experts, hidden, inner]. group: a name.
    """
    if x.dim() != 2 or not row_parallel.is_worth(x):
        return None
    slots = ReplicatedSlots(topk_ids, w13.shape[0], find_group(group), settings.max_m, x.shape[0])
    if x.is_cuda and not experts.overlapped.overlaps_moe(x, w13, w2, slots, ACTIVATION):
        return None
    sums, _ = moe(
        x, w13, w2, topk_ids, topk_weights.to(shapes.wide(x.dtype)), group, activation=ACTIVATION,
        tensor_parallel=True, capacity=settings.max_m, replicated=True,
    )  # fmt: skip
    return sums
