"""How calls run: as mm + c10d, or by a mechanism of the group's context.

The choice depends on the shape, m and tables alone, so that ranks agree without asking.
"""

import bisect
import dataclasses
import functools
import json
import math
from typing import NamedTuple

from .. import _files
from ..errors import InvalidArgument
from . import native
from .settings import settings

LIBRARY = "mm+c10d"  # the choice of the libraries alone
PREDICTED = "predicted"  # the choice of the fastest predicted mechanism; others are a mechanism with params
SUMS = "reducescatter", "allreduce"
BUCKETS = "allgather", *SUMS  # collectives alone
# Mechanisms by PREDICTED of operators whose fastest predicted one a context does not find by itself.
OWN = {
    "attention+reducescatter": "fused",
    "ulysses-attention": "ring engines=1 slices=2",
    "allgather+attention": "ring engines=1",
    "attention-backward": "ring engines=1",
    "allgather": "copy-engine trigger=direct",
}
BYTES = {"f32": 4, "bf16": 2, "f16": 2}  # of an element
# Most tokens of all ranks for which Ulysses' exchange is overlapped unmeasured. Of 128K it is 2% of the time, and what
# hides it may cost more.
MOST_TOKENS = 96 << 10
MARGIN = 0.98  # a mechanism is chosen if its time is at most this part of the libraries'


class Shape(NamedTuple):
    """An operator of a context, without its m. Sizes are those of one rank's GEMM: [m, k] times [k, n].

    A collective of a bucket has rows of n = k elements. In tables they have one, and m is the bucket's elements.
    """

    op: str
    n: int
    k: int
    dtype: str
    ranks: int
    inner: int = 0
    keeps: bool = False  # gathered rows are read after the call
    captured: bool = False  # in a CUDA graph, which cannot hold all mechanisms
    attention: tuple[int, int, int, bool] | None = None  # heads and kv_heads of all ranks, head_dim, causal
    zigzag: bool = False  # order of the tokens of an attention
    experts: tuple[int, int] | None = None  # experts of all ranks, and of a token
    capacity: int = 0  # slots of an expert for one rank's tokens, which the device routes; 0: the host routes
    returns_lse: bool = False  # an attention also returns its log-sum-exp
    f32_sums: bool = False  # sums of narrower values are fp32
    normed: bool = False  # the sum is added to a residual, and normed
    gathers: int = 0  # columns of a matrix that copy engines gather beside the product
    transpose_b: bool = True
    bias: bool = False
    activation: str | None = None
    norm_epsilon: float | None = None  # of a normed one
    scale: float = 1.0  # factor of the sums of a bucket
    mechanism: str | None = None  # with params, as "ring slices=2"; None: the fastest predicted one

    @property
    def key(self):
        """What the speed depends on."""
        return key_of(self)


@functools.cache
def key_of(shape):
    return Shape(*shape[: Shape._fields.index("transpose_b")])


def summing(shape):
    """The mechanism of a sum over ranks: the workers that it takes keep pace with a link.

    A sum of one slice is hidden behind the next, but each slice starts a copy to each other rank anew.
    """
    return f"copy-engine sum-slices={4 if shape.ranks <= 4 else 2} sum-workers=32 trigger=direct"


@functools.cache
def by(shape, choice):
    """The operator by the mechanism of a choice.

    Not every mechanism gathers rows in their order; fused does. A context compares default params alone, and ring has
    no engines by default.
    """
    if choice == PREDICTED:
        choice = "fused" if shape.keeps else summing(shape) if shape.op in SUMS else OWN.get(shape.op)
    return shape._replace(mechanism=choice, keeps=False, captured=False)


def predicts(shape):
    """True if calls that were not measured are overlapped.

    Not those of experts whom the host routes: a new routing makes it plan anew, while the device waits.
    """
    return not host_routes(shape)


def unmeasured(shape):
    """Rows of a Table for a shape that was not measured."""
    if not predicts(shape):
        return []
    if shape.op == "ulysses-attention" and settings.max_m > MOST_TOKENS:
        return [(MOST_TOKENS, PREDICTED), (settings.max_m, "sequential")]
    return [(settings.max_m, PREDICTED)]


def host_routes(shape):
    """True if the host needs the routing of each call, so that no CUDA graph holds it."""
    return shape.experts is not None and shape.capacity == 0


def most_rows(row):
    return row[0]


@dataclasses.dataclass
class Table:
    """Choices that were measured, by Shape.key: [(most rows, choice), …], in ascending order."""

    rows: dict[Shape, list[tuple[int, str]]] = dataclasses.field(default_factory=dict)
    fixed: dict[str, str] = dataclasses.field(default_factory=dict)  # overrides the choices of an op
    forced: str | None = None  # overrides all choices

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        native.forget()

    def enter(self, shape, rows):
        """Sets the rows of a shape."""
        self.rows[shape.key] = rows
        native.forget()

    def fix(self, ops, choice):
        """Makes the choice that of all calls of some ops; None: as was measured, again."""
        others = {op: fixed for op, fixed in self.fixed.items() if op not in ops}
        self.fixed = others if choice is None else others | dict.fromkeys(ops, choice)

    def choose(self, shape, m, lengths=None):
        """The choice for a call with m rows, or of packed sequences of these lengths."""
        if self.forced is not None:
            return self.forced
        bucket = shape.op in BUCKETS
        if (m > settings.max_m and not bucket) or (lengths and not settings.overlap_packed):
            return LIBRARY
        if shape.op in self.fixed:
            return self.fixed[shape.op]
        rows = self.known(shape)
        if rows is None:
            if bucket:
                return PREDICTED if m >= settings.min_bucket_bytes // BYTES[shape.dtype] else LIBRARY
            rows = unmeasured(shape) if m >= settings.min_m else []
        at = bisect.bisect_left(rows, m, key=most_rows)
        return rows[at][1] if at < len(rows) else LIBRARY

    def known(self, shape):
        """The rows of a shape that was measured; else those without a capture, then without a norm and a gather."""
        rows = self.rows.get(shape.key)
        if rows is None and shape.captured:
            rows = self.rows.get(shape._replace(captured=False).key)
        if rows is None and (shape.normed or shape.gathers):
            return self.known(shape._replace(normed=False, gathers=0))
        return rows

    def mechanisms(self, shape):
        """The operator by each mechanism that the table may choose for it, in an order that is equal on all ranks."""
        rows = [row for captured in (False, True) for row in self.known(shape._replace(captured=captured)) or []]
        if shape.op in self.fixed:
            rows = [(settings.max_m, self.fixed[shape.op])]
        found = [by(shape, choice) for _, choice in rows or unmeasured(shape) if choice != LIBRARY]
        return list(dict.fromkeys(found))

    def save(self, path):
        """Writes the table as JSON."""
        shapes = [
            {"op": s.op, "n": s.n, "k": s.k, "dtype": s.dtype, "ranks": s.ranks, "inner": s.inner, "keeps": s.keeps,
             "captured": s.captured, "attention": s.attention, "zigzag": s.zigzag, "experts": s.experts,
             "capacity": s.capacity, "returns_lse": s.returns_lse, "f32_sums": s.f32_sums, "normed": s.normed,
             "gathers": s.gathers, "choices": rows}
            for s, rows in sorted(self.rows.items())
        ]
        _files.write(path, json.dumps({"version": 2, "shapes": shapes}, indent=1))

    def load(self, path):
        """Adds the shapes of a file that `save` wrote. Load the same file on all ranks."""
        text = _files.read(path, "what table.save() writes")
        try:
            found = json.loads(text)
            if found["version"] != 2:
                raise ValueError(f"version {found['version']}, expected 2")
            shapes = []
            for row in found["shapes"]:
                choices = [(int(most), str(choice)) for most, choice in row.pop("choices")]
                row |= {name: row.get(name) and tuple(row[name]) for name in ("attention", "experts")}
                shapes.append((Shape(**row), sorted(choices)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidArgument(f"{path} is no table of choices; write one with table.save()") from error
        for shape, choices in shapes:
            self.enter(shape, choices)


table = Table()


def fastest(times_us):
    """Rows of a Table. times_us: {m: {choice: time}}, with LIBRARY at each m.

    A measured m takes the choice that is fastest there. Calls between two of them take the one that is fastest at both,
    and slower than the libraries at neither.
    """
    rows, below, last = [], None, 0

    def add(most, ends):
        never_slower = [
            choice for choice in ends[-1]
            if choice == LIBRARY or all(choice in end and end[choice] <= MARGIN * end[LIBRARY] for end in ends)
        ]  # fmt: skip
        choice = min(never_slower, key=lambda choice: math.prod(end[choice] for end in ends))
        if rows and rows[-1][1] == choice:
            rows.pop()
        rows.append((most, choice))

    for m, times in sorted(times_us.items()):
        if m > last + 1:
            add(m - 1, [times] if below is None else [below, times])
        add(m, [times])
        below, last = times, m
    return rows
