"""Where the rows of a routing lie if each rank has a slice of every expert."""

import functools

import torch

from .routing import HostRouting
from .sliced import SlicedExperts


class Slices(HostRouting, SlicedExperts):
    """As Layout: the kernels take either."""

    @property
    def here(self):
        return self.counts

    @functools.cached_property
    def choice_of(self):
        numbers = torch.arange(self.group.size * self.most_tokens * self.topk).view(self.group.size, -1, self.topk)
        in_order = [of[: count // self.topk].t().flatten() for of, count in zip(numbers, self.choices)]
        experts = torch.cat([self.ids(rank) for rank in range(self.group.size)])
        return self._there(torch.cat(in_order)[torch.argsort(experts, stable=True)])


def own_part(w_up, w_down, group, activation, tensor_parallel):
    """This rank's part of weights of all experts: the rank-th of the experts, or the rank-th slice of each."""

    def part(w, dim):
        return w.chunk(group.size, dim)[group.rank]

    if not tensor_parallel:
        return part(w_up, 0), part(w_down, 0)
    halves = w_up.chunk(2 if activation == "swiglu" else 1, 1)
    return torch.cat([part(half, 1) for half in halves], 1), part(w_down, 2)
