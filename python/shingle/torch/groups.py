"""Process groups by name, as functional collectives name them."""

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


_known: dict[str, Group] = {}


def find_group(name: str) -> Group:
    """The group of this name. Raises InvalidArgument if there is none, or if this process is not in it."""
    try:
        process_group = _resolve_process_group(name)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"group = {name!r} is no process group; pass group_name of an initialised one") from error
    known = _known.get(name)
    if known is None or known.process_group is not process_group:
        known = Group(name, process_group, process_group.rank(), process_group.size())
        if known.rank < 0:
            raise InvalidArgument(f"group = {name!r} does not contain this process")
        _known[name] = known
    return known


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
