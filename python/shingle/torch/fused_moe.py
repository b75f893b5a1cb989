"""Mixture-of-experts layers of vLLM and SGLang, both called FusedMoE: `moe` with a capacity.

With tensor parallelism these servers give each rank a slice of every expert, and all ranks the same tokens. Here each
rank takes its part of the tokens through `moe` with tensor_parallel, and an all-gather returns the sums of all tokens.
An expert has as many slots as a rank has tokens in the largest batch. Routers choose an expert at most once a token, so
no choice is dropped.
"""

from . import experts, row_parallel, sequential, shapes
from .experts.slots import SlicedSlots
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
    at = find_group(group)
    most, capacity = shapes.shard_rows(x.shape[0], at), shapes.shard_rows(settings.max_m, at)
    own = slice(at.rank * most, (at.rank + 1) * most)
    mine, ids, weights = x[own], topk_ids[own], topk_weights[own]
    slots = SlicedSlots(ids, w13.shape[0], at, capacity, most)
    if x.is_cuda and not experts.overlapped.overlaps_moe(mine, w13, w2, slots, ACTIVATION):
        return None
    sums, _ = moe(
        mine, w13, w2, ids, weights.to(shapes.wide(x.dtype)), group, activation=ACTIVATION, tensor_parallel=True,
        capacity=capacity, max_tokens=most,
    )  # fmt: skip
    return sequential.all_gather(sums, x.shape[0], at)
