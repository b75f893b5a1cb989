"""Which expert gets which token: how the ranks learn it, and where the rows lie.

The host plans a call, so it needs the routing of all ranks. `exchange` alone sends topk_ids and waits for the device;
all else reads a `Layout`, or slices.Slices where each rank has a slice of every expert. With a capacity, slots.Slots
takes the place of both.

A routing is an int32 matrix on the host, equal on all ranks. Row r has the number of choices of rank r, then their
experts, then padding. Choice j of token i of t tokens is at j · t + i, as in shingle_routing.
"""

import functools
import weakref
import zlib

import torch
import torch.distributed as dist

from ... import context
from ...errors import InvalidArgument, Unsupported
from .whole import WholeExperts

HEADER = 2  # of a message: a checksum of the terms, and the number of choices, or minus the bytes of an error's text
LEAST_ROOM = 256  # choices that a message has room for; an error's text has four bytes a choice
# Equal on all ranks: by the choices of earlier exchanges. Weak, as groups._known.
_room: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()


def exchange(topk_ids, experts, group, terms, device, error=None):
    """The routing of all ranks. Collective.

    topk_ids: this rank's, [tokens, topk]. terms: what must be equal on all ranks, as text. error: what is wrong with
    the arguments of this rank, which takes part all the same. Raises InvalidArgument on all ranks if anything is wrong
    on one. It is one all-gather, or two if a rank has more tokens than before: their number travels with the ids.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "moe in a CUDA graph capture: the host reads topk_ids to plan the call; capture what is around it"
        )
    header, payload = message_of(topk_ids, terms) if error is None else message_of_error(error)
    while True:
        room = _room.get(group.process_group, LEAST_ROOM)
        message = torch.zeros(HEADER + room, dtype=torch.int32, device=device)
        message[:HEADER] = torch.tensor(header, dtype=torch.int32).to(device)
        if payload.numel() <= room:
            message[HEADER : HEADER + payload.numel()] = payload.to(device)
        gathered = message.new_empty(group.size * message.numel())
        dist.all_gather_into_tensor(gathered, message, group=group.process_group)
        gathered = gathered.view(group.size, -1).cpu()
        require_same(gathered, group, terms, error)
        most = int(gathered[:, 1].max())
        _room[group.process_group] = max(LEAST_ROOM, 1 << (most - 1).bit_length())
        if most <= room:
            routing = gathered[:, 1 : HEADER + most].contiguous()
            require_experts(routing, experts)
            return routing


def message_of(topk_ids, terms):
    """What a rank sends: (checksum of the terms, number of choices), and the choices."""
    int32 = torch.iinfo(torch.int32)
    payload = topk_ids.t().reshape(-1).clamp(int32.min, int32.max).to(torch.int32)  # no id wraps around to a good one
    return (zlib.crc32(terms.encode()) & int32.max, payload.numel()), payload


def message_of_error(error):
    text = str(error).encode()[: 4 * LEAST_ROOM]
    return (0, -len(text)), torch.frombuffer(bytearray(text.ljust(4 * LEAST_ROOM)), dtype=torch.int32)


def require_same(gathered, group, terms, error):
    """Raises InvalidArgument if a rank has wrong arguments, or other terms. Equal on all ranks."""
    if error is not None:
        raise error
    for rank, (_, count) in enumerate(gathered[:, :HEADER].tolist()):
        if count < 0:
            text = gathered[rank, HEADER:].numpy().tobytes()[:-count].decode(errors="replace")
            raise InvalidArgument(f"{text} (on rank {rank} of group {group.name!r})")
    others = (gathered[:, 0] != gathered[0, 0]).nonzero()
    if others.numel() > 0:
        raise InvalidArgument(
            f"x, w_up, w_down, topk_ids, activation or tensor_parallel: rank {others[0].item()} of group "
            f"{group.name!r} has other sizes, dtype, activation or tensor_parallel than rank 0; this rank has {terms}"
        )


def require_experts(routing, experts):
    """Raises InvalidArgument if a choice is no expert."""
    chosen = torch.arange(routing.shape[1] - 1) < routing[:, :1]
    wrong = (chosen & ((routing[:, 1:] < 0) | (routing[:, 1:] >= experts))).nonzero()
    if wrong.numel() > 0:
        rank, at = wrong[0].tolist()
        expert = int(routing[rank, 1 + at])
        beyond = " or more" if expert == torch.iinfo(torch.int32).max else ""
        raise InvalidArgument(
            f"topk_ids has {expert}{beyond} on rank {rank}; expected experts in [0, {experts}) of all ranks"
        )


class HostRouting:
    """A routing that the host knows. Indices are on `device`; numbers are of the host.

    A rank multiplies rows by expert, then by source, then in the order of the source. Derived classes have `here`: the
    numbers of these rows, [sources, experts of which this rank has weights].
    """

    declared_capacity = 0  # no capacity

    def __init__(self, routing, topk, experts, group, device):
        self.routing, self.topk, self.experts, self.group, self.device = routing, topk, experts, group, device
        self.choices = routing[:, 0].tolist()  # of each rank
        self.most_tokens = max(self.choices) // topk

    @property
    def tokens(self):
        """Tokens of this rank."""
        return self.choices[self.group.rank] // self.topk

    def ids(self, rank):
        return self.routing[rank, 1 : 1 + self.choices[rank]]

    @functools.cached_property
    def counts(self):
        """Choices of each rank that go to each expert, [ranks, experts]."""
        return torch.stack([torch.bincount(self.ids(rank), minlength=self.experts) for rank in range(self.group.size)])

    @functools.cached_property
    def ends(self):
        """The end of the rows of each expert of this rank."""
        return self.here.sum(0).cumsum(0).tolist()

    @property
    def received(self):
        """Rows that the experts of this rank receive."""
        return self.ends[-1]

    @functools.cached_property
    def offsets(self):
        """`ends` as torch._grouped_mm takes them."""
        return self._there(torch.tensor(self.ends, dtype=torch.int32))

    @functools.cached_property
    def for_context(self):
        """The routing as calls of a context take it."""
        width = self.routing.shape[1] * self.routing.element_size()
        first = self.routing.data_ptr() + self.routing.element_size()
        addresses = [first + rank * width for rank in range(self.group.size)]
        return context.Routing.in_memory(addresses, self.choices, self.experts, self.routing)

    def new_rows(self, like, columns):
        """Rows by expert of this rank, not initialised."""
        return like.new_empty(self.received, columns)

    def matrices(self, op):
        return []

    def pick(self, rows, index):
        return rows[index]

    def kept(self, topk_weights):
        """The weights: no choice is dropped."""
        return topk_weights

    def _there(self, index):
        """An index on the device. Pinned, so that the host does not wait for it."""
        return index.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else index


class Layout(HostRouting, WholeExperts):
    """Where the rows of a routing lie. Choices leave a rank sorted by expert, and so by rank, then in their order."""

    @functools.cached_property
    def table(self):
        """Rows that ranks send to each other, [source][destination]."""
        return self.counts.unflatten(1, (self.group.size, -1)).sum(2).tolist()

    @property
    def returned(self):
        """The table of the way back."""
        return [list(column) for column in zip(*self.table)]

    @functools.cached_property
    def here(self):
        return self.counts.unflatten(1, (self.group.size, -1))[:, self.group.rank]

    @functools.cached_property
    def leaving(self):
        """The choice that is in each row which leaves this rank."""
        return self._there(torch.argsort(self.ids(self.group.rank), stable=True))

    @property
    def leaving_tokens(self):
        """The token that is in each row which leaves this rank."""
        return self.leaving % max(self.tokens, 1)

    @functools.cached_property
    def by_choice(self):
        """The row of each choice among those that return. The inverse of `leaving`."""
        return inverse(self.leaving)

    @functools.cached_property
    def by_expert(self):
        """The row, among those that arrive, of each row as they are multiplied."""
        experts = torch.arange(self.here.shape[1])
        arrived = torch.cat([experts.repeat_interleave(rows) for rows in self.here])
        return self._there(torch.argsort(arrived, stable=True))

    @functools.cached_property
    def by_source(self):
        """The inverse of `by_expert`."""
        return inverse(self.by_expert)


def inverse(order):
    return torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
