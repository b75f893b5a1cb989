"""Process groups by name, as functional collectives name them."""

import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from ..errors import InvalidArgument


class Group(NamedTuple):
    """A process group as this rank sees it. `name` is what the ops take."""

    name: str
    process_group: dist.ProcessGroup
    rank: int
    size: int
    registry: "Registry | None" = None

    def all_reduce(self, x):
        """The sum of x over the ranks. May overwrite x."""
        if self.registry is not None:
            return self.registry.all_reduce(x, self.name)
        dist.all_reduce(x, group=self.process_group)
        return x


class Registry(NamedTuple):
    """Groups that a framework names itself, as vLLM's "tp:0".

    find: the ProcessGroup of a name, or None. all_reduce: the framework's own sum of x over the group of a name. Calls
    that are not overlapped take it, so that they run as in the framework alone.
    """

    find: Callable[[str], dist.ProcessGroup | None]
    all_reduce: Callable[[torch.Tensor, str], torch.Tensor]


registries: list[Registry] = []
# Rank and size by name, as asking for them takes ten microseconds. A reference to the group would keep it alive beyond
# destroy_process_group(), and threads of gloo that outlive Python abort the process.
_known: dict[str, tuple[weakref.ref, int, int]] = {}


def resolve(name: str) -> tuple[dist.ProcessGroup, Registry | None]:
    for registry in registries:
        if (process_group := registry.find(name)) is not None:
            return process_group, registry
    try:
        return _resolve_process_group(name), None
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"group = {name!r} is no process group; pass group_name of an initialised one") from error


def find_group(name: str) -> Group:
    """The group of this name. Raises InvalidArgument if there is none, or if this process is not in it."""
    process_group, registry = resolve(name)
    known = _known.get(name)
    if known is None or known[0]() is not process_group:
        known = _known[name] = weakref.ref(process_group), process_group.rank(), process_group.size()
    _, rank, size = known
    if rank < 0:
        raise InvalidArgument(f"group = {name!r} does not contain this process")
    return Group(name, process_group, rank, size, registry)


def is_group(name: str) -> bool:
    """True if this process is in a group of this name."""
    try:
        find_group(name)
    except InvalidArgument:
        return False
    return True


@torch.compiler.assume_constant_result
def ranks_of(name: str) -> int:
    """Number of ranks of a group; a constant of compiled graphs."""
    return find_group(name).size


def name_of(group) -> str:
    """The name of a group that is given by name, as ProcessGroup or as a 1-D DeviceMesh; None: the default group."""
    if isinstance(group, str):
        return group
    if group is None:
        group = dist.group.WORLD
        if group is None:
            raise InvalidArgument("group = None needs torch.distributed.init_process_group() first")
    if isinstance(group, dist.DeviceMesh):
        group = group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise InvalidArgument(f"group = {group!r} must be a ProcessGroup, its group_name, or a 1-D DeviceMesh")
    return group.group_name
