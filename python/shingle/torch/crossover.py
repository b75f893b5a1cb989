"""Which calls are overlapped: from a number of rows on that depends on the shape alone, so that ranks agree."""

import dataclasses
import functools
import json
import os
from typing import NamedTuple

from ..errors import InvalidArgument, IoError
from .settings import settings

NEVER = 1 << 62


class Shape(NamedTuple):
    """An operator of a context, without its m. Sizes are those of one rank's GEMM: [m, k] times [k, n]."""

    op: str
    n: int
    k: int
    dtype: str
    ranks: int
    inner: int = 0
    transpose_b: bool = True
    bias: bool = False
    activation: str | None = None
    norm_epsilon: float | None = None

    @property
    def key(self):
        """What the speed depends on."""
        return key_of(self)


@functools.cache
def key_of(shape):
    return Shape(*shape[:6])


@dataclasses.dataclass
class Table:
    """Least m that is overlapped, by shape."""

    from_m: dict[Shape, int] = dataclasses.field(default_factory=dict)
    forced: bool | None = None  # overrides the choice while calls are measured

    def overlaps(self, shape, m):
        """True if a call with m rows is overlapped; false: it runs as mm + c10d."""
        if self.forced is not None:
            return self.forced
        return self.from_m.get(shape.key, settings.min_m) <= m <= settings.max_m

    def save(self, path):
        """Writes the table as JSON."""
        rows = [
            {"op": s.op, "n": s.n, "k": s.k, "dtype": s.dtype, "ranks": s.ranks, "inner": s.inner,
             "from_m": None if m == NEVER else m}
            for s, m in sorted(self.from_m.items())
        ]  # fmt: skip
        beside = f"{path}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            json.dump({"version": 1, "shapes": rows}, file, indent=1)
        os.replace(beside, path)

    def load(self, path):
        """Adds the shapes of a file that `save` wrote. Load the same file on all ranks."""
        try:
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        except OSError as error:
            raise IoError(f"cannot read {path}: {error.strerror}") from error
        try:
            if found["version"] != 1:
                raise ValueError(f"version {found['version']}, expected 1")
            for row in found["shapes"]:
                from_m = row.pop("from_m")
                self.from_m[Shape(**row).key] = NEVER if from_m is None else int(from_m)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(
                f"{path} is no table of crossovers: {error!r}; write one with table.save()"
            ) from error


table = Table()


def crossover(times_us):
    """The least m from which on overlapping is never slower. times_us: {m: (overlapped, mm + c10d)}, measured."""
    least = NEVER
    for m in sorted(times_us, reverse=True):
        overlapped, sequential = times_us[m]
        if overlapped > sequential:
            break
        least = m
    return least
