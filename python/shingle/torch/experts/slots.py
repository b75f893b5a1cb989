"""Where the rows of a routing with a capacity lie: the device routes, and no size depends on what tokens choose.

An expert has `capacity` slots for the tokens of each rank (docs/mechanisms/expert-capacity.md). Choices take slots in
the order of choice 0 of all tokens, then choice 1, and so on. Those that find none are dropped, and counted.
"""

import functools

import torch
import torch.nn.functional as F

from ..sequential import all_gather
from .sliced import SlicedExperts
from .whole import WholeExperts


class DeviceRouting:
    """As routing.HostRouting, but indices are on the device, -1 for no row, and nothing waits for it.

    Derived classes have `own`: the number of experts of which this rank has weights. Its rows are by expert, then by
    source. topk_ids: of this rank, [tokens, topk]; ids other than -1 that are no expert are counted. experts: of all
    ranks. most_tokens: of any rank, equal on all ranks. An expert needs no more than most_tokens · topk slots.
    """

    for_context = None  # calls take no routing of the host

    def __init__(self, topk_ids, experts, group, capacity, most_tokens):
        self.topk_ids, self.experts, self.group, self.most_tokens = topk_ids, experts, group, most_tokens
        self.tokens, self.topk = topk_ids.shape
        self.device, self.declared_capacity = topk_ids.device, capacity
        self.capacity = min(capacity, most_tokens * self.topk)

    @property
    def sources(self):
        """Ranks of whose tokens an expert has rows."""
        return self.group.size

    @property
    def received(self):
        return self.sources * self.own * self.capacity

    @property
    def ends(self):
        """The end of the rows of each expert of this rank."""
        return [(expert + 1) * self.sources * self.capacity for expert in range(self.own)]

    @functools.cached_property
    def offsets(self):
        ends = torch.arange(1, self.own + 1, dtype=torch.int32, device=self.device)
        return ends * (self.sources * self.capacity)

    @functools.cached_property
    def _assigned(self):
        """The slot of each choice, the choice of each slot, and what was dropped."""
        ids = self.topk_ids.t().reshape(-1)
        chosen = (ids >= 0) & (ids < self.experts)
        expert, by_expert = torch.where(chosen, ids, self.experts).sort(stable=True)
        expert = expert.long()
        first = torch.searchsorted(expert, torch.arange(self.experts + 1, device=self.device))
        turn = torch.arange(expert.numel(), device=self.device) - first[expert]  # among the choices of an expert
        finds_slot = (expert < self.experts) & (turn < self.capacity)
        slots = self.experts * self.capacity
        slot = torch.where(finds_slot, expert * self.capacity + turn, slots)
        choice_of = by_expert.new_full((slots + 1,), -1).scatter_(0, slot, by_expert)[:slots]  # the last one: none
        slot_of = torch.empty_like(slot).scatter_(0, by_expert, torch.where(finds_slot, slot, -1))
        unknown = ~chosen & (ids != -1)
        dropped = torch.stack((chosen.sum() - finds_slot.sum(), unknown.sum())).int()
        return slot_of, choice_of, dropped

    @property
    def by_choice(self):
        return self._assigned[0]

    @property
    def leaving(self):
        """The choice that is in each slot."""
        return self._assigned[1]

    @functools.cached_property
    def dropped(self):
        """int32 [2]: choices of own tokens that found no slot; ids that are neither an expert nor -1."""
        return self._assigned[2]

    @property
    def by_expert(self):
        return self._turned(self.sources, self.own)

    @property
    def by_source(self):
        return self._turned(self.own, self.sources)

    def _turned(self, *outer):
        rows = torch.arange(self.received, device=self.device)
        return rows.view(*outer, self.capacity).transpose(0, 1).reshape(-1)

    def pick(self, rows, index):
        """rows[index], and zeros for -1."""
        return F.pad(rows, (0, 0, 0, 1))[index]

    def kept(self, topk_weights):
        """The weights, and zeros for dropped choices, whatever their weights are."""
        found = (self.by_choice >= 0).view(self.topk, self.tokens).t()
        return torch.where(found, topk_weights, 0)

    def new_rows(self, like, columns):
        """Rows by expert. A call of a context leaves those of empty slots as they are."""
        return like.new_zeros(self.received, columns)

    def matrices(self, op):
        """What calls of a context take and give beside the matrices of a Layout, in the order of contexts.roles."""
        ids = self.topk_ids.clamp(-2, self.experts).int().contiguous()  # no id wraps around to a good one
        self.dropped = ids.new_empty(2)
        found = [ids, self.dropped.view(1, 2)]
        if op == self.OPS["dispatch"]:
            found.append(ids.new_empty(self.group.size, self.own))
        return found


class Slots(DeviceRouting, WholeExperts):
    """As routing.Layout: the kernels take either."""

    @property
    def own(self):
        return self.experts // self.group.size

    @property
    def table(self):
        """Rows that ranks send to each other, [source][destination]: all slots, also empty ones."""
        return [[self.own * self.capacity] * self.group.size] * self.group.size

    @property
    def returned(self):
        return self.table

    @property
    def leaving_tokens(self):
        return torch.where(self.leaving < 0, -1, self.leaving % max(self.tokens, 1))


class SlicedSlots(DeviceRouting, SlicedExperts):
    """As slices.Slices: the kernels take either. Each rank assigns slots of its own tokens, and tells all others."""

    _choice_of = None  # known at its first use

    @property
    def own(self):
        return self.experts

    @property
    def choice_of(self):
        if self._choice_of is None:
            self._choice_of = self._gathered_choices()
        return self._choice_of

    def _gathered_choices(self):
        """The number of the choice that is in each row. Collective."""
        number = self._own_choices(self.group.rank * self.most_tokens)
        gathered = all_gather(number.view(-1, 1), self.group.size * self.experts * self.capacity, self.group)
        return gathered.view(-1)[self.by_expert]

    def _own_choices(self, first):
        """The number of the choice that is in each slot. first: token of all ranks that is token 0 of this one."""
        tokens = max(self.tokens, 1)
        number = (first + self.leaving % tokens) * self.topk + self.leaving // tokens
        return torch.where(self.leaving < 0, -1, number)


class ReplicatedSlots(SlicedSlots):
    """As SlicedSlots, where all ranks have the same tokens and choices: a rank has the rows of its own, and only sums
    travel."""

    OPS = {"dispatch": None, "combine": "grouped-gemm+allreduce", "moe": "moe+allreduce"}
    sources = 1

    def _gathered_choices(self):
        return self._own_choices(0)

    def send_tokens(self, x):
        return lambda: self.pick(x, self.choice_of // self.topk)

    def _gather(self, x):
        return F.pad(x, (0, 0, 0, self.most_tokens - self.tokens))

    def _scatter(self, x):
        return self.group.all_reduce(x)[: self.tokens]
