"""How rows travel where each rank has some of the experts: to the ranks of their experts, and back."""

from ..sequential import all_to_all
from .sequential import weighted_sum


class WholeExperts:
    """Of routing.Layout and slots.Slots, which know where the rows lie."""

    OPS = {"dispatch": "alltoall+grouped-gemm", "combine": "grouped-gemm+alltoall", "moe": "moe"}

    def send(self, rows, index):
        """Rows of choices to the experts. index: the row that each leaving choice takes.

        Returns a function that waits for the rows [received, columns] and returns them, sorted by expert.
        """
        arrived, work = all_to_all(self.pick(rows, index), self.table, self.group, async_op=True)

        def wait():
            work.wait()
            return arrived[self.by_expert]

        return wait

    def send_tokens(self, x):
        """Tokens [tokens, columns] to the experts that they chose. Returns what send() returns."""
        return self.send(x, self.leaving_tokens)

    def send_weights(self, topk_weights):
        """The weight of each row that the experts received, [received, 1]."""
        return self.send(topk_weights.t().reshape(-1, 1), self.leaving)()

    def give_back(self, rows):
        """Rows of experts [received, columns] to their tokens: [topk, tokens, columns]; zeros for dropped choices."""
        returned = all_to_all(rows[self.by_source], self.returned, self.group)
        return self.pick(returned, self.by_choice).view(self.topk, self.tokens, rows.shape[1])

    def sum_choices(self, rows, topk_weights):
        """Rows of experts, back to their tokens and summed with the weights there."""
        return weighted_sum(self.give_back(rows), self.kept(topk_weights))
