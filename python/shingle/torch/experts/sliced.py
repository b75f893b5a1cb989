"""How rows travel where each rank has a slice of every expert: all tokens come to all ranks, and sums go back."""

import torch

from ..sequential import all_gather, reduce_scatter
from .sequential import weighted_sum


class SlicedExperts:
    """Of slices.Slices and slots.SlicedSlots, which know where the rows lie. Every rank has the same rows, by expert.

    Ranks gather and scatter as many tokens as the rank that has most. So choice j of token i of rank r is number
    (r · most_tokens + i) · topk + j of the gathered choices. `choice_of`: the number of the choice that is in each row,
    -1 for none. `sources`: ranks that have tokens of their own.
    """

    @property
    def sources(self):
        return self.group.size

    OPS = {"dispatch": "allgather+grouped-gemm", "combine": "grouped-gemm+reducescatter", "moe": "moe-tp"}

    @property
    def rows(self):
        """The row of each choice, [tokens of all ranks, topk]; -1 for none, as of padding, whose sums no rank keeps."""
        choices = self.sources * self.most_tokens * self.topk
        found = self.choice_of.new_full((choices + 1,), -1)  # the last one: of rows without a choice
        row = torch.arange(self.received, device=self.device)
        return found.scatter_(0, self.choice_of.where(self.choice_of >= 0, choices), row)[:-1].view(-1, self.topk)

    def send_tokens(self, x):
        """Tokens [tokens, columns] to all ranks. Returns a function that waits for their rows, sorted by expert."""
        gathered, work = all_gather(x, self.group.size * self.most_tokens, self.group, async_op=True)

        def wait():
            work.wait()
            return self.pick(gathered, self.choice_of // self.topk)

        return wait

    def send_weights(self, topk_weights):
        """The weight of each row, [received, 1]."""
        return self.pick(self._gather(topk_weights).view(-1, 1), self.choice_of)

    def give_back(self, rows):
        """Rows by expert, summed over the ranks, to their tokens: [topk, tokens, columns]."""
        found = self.pick(rows, self.rows).flatten(1)
        return self._scatter(found).unflatten(1, (self.topk, -1)).transpose(0, 1)

    def sum_choices(self, rows, topk_weights):
        """Rows by expert, summed with the weights of their tokens, then over the ranks."""
        products = self.pick(rows, self.rows).transpose(0, 1)
        return self._scatter(weighted_sum(products, self._gather(self.kept(topk_weights))))

    def _gather(self, x):
        return all_gather(x, self.group.size * self.most_tokens, self.group)

    def _scatter(self, x):
        return reduce_scatter(x, self.group)[: self.tokens]
