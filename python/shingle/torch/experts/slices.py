"""Where the rows lie if each rank has a slice of every expert: all tokens come to all ranks, and sums go back."""

import functools

import torch

from ..sequential import all_gather, reduce_scatter
from .routing import HostRouting
from .sequential import weighted_sum


class Slices(HostRouting):
    """As Layout: the kernels take either. Every rank has the same rows, by expert.

    Ranks gather and scatter as many tokens as the rank that has most. So choice j of token i of rank r is number
    (r · most_tokens + i) · topk + j of the gathered choices.
    """

    OPS = {"dispatch": "allgather+grouped-gemm", "combine": "grouped-gemm+reducescatter", "moe": "moe-tp"}

    @property
    def here(self):
        return self.counts

    @functools.cached_property
    def choice_of(self):
        """The number of the choice that is in each row."""
        numbers = torch.arange(self.group.size * self.most_tokens * self.topk).view(self.group.size, -1, self.topk)
        in_order = [of[: count // self.topk].t().flatten() for of, count in zip(numbers, self.choices)]
        experts = torch.cat([self.ids(rank) for rank in range(self.group.size)])
        return self._there(torch.cat(in_order)[torch.argsort(experts, stable=True)])

    @functools.cached_property
    def rows(self):
        """The row of each choice, [tokens of all ranks, topk]. Padding has row 0: no rank keeps its sums."""
        found = self.choice_of.new_zeros(self.group.size * self.most_tokens * self.topk)
        return found.scatter_(0, self.choice_of, torch.arange(self.received, device=self.device)).view(-1, self.topk)

    def send_tokens(self, x):
        """Tokens [tokens, columns] to all ranks. Returns a function that waits for their rows, sorted by expert."""
        gathered, work = all_gather(x, self.group.size * self.most_tokens, self.group, async_op=True)

        def wait():
            work.wait()
            return gathered[self.choice_of // self.topk]

        return wait

    def send_weights(self, topk_weights):
        """The weight of each row, [received, 1]."""
        return self._gather(topk_weights).view(-1, 1)[self.choice_of]

    def give_back(self, rows):
        """Rows by expert, summed over the ranks, to their tokens: [topk, tokens, columns]."""
        return self._scatter(rows[self.rows].flatten(1)).unflatten(1, (self.topk, -1)).transpose(0, 1)

    def sum_choices(self, rows, topk_weights):
        """Rows by expert, summed with the weights of their tokens, then over the ranks."""
        return self._scatter(weighted_sum(rows[self.rows].transpose(0, 1), self._gather(topk_weights)))

    def _gather(self, x):
        return all_gather(x, self.group.size * self.most_tokens, self.group)

    def _scatter(self, x):
        return reduce_scatter(x, self.group)[: self.tokens]


def own_part(w_up, w_down, group, activation, tensor_parallel):
    """This rank's part of weights of all experts: the rank-th of the experts, or the rank-th slice of each."""

    def part(w, dim):
        return w.chunk(group.size, dim)[group.rank]

    if not tensor_parallel:
        return part(w_up, 0), part(w_down, 0)
    halves = w_up.chunk(2 if activation == "swiglu" else 1, 1)
    return torch.cat([part(half, 1) for half in halves], 1), part(w_down, 2)
