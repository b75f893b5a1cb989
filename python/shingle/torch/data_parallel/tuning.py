"""Which mechanism moves a bucket: measured beside products, and confirmed on the step that uses it."""

import statistics

import torch
import torch.distributed as dist

from .. import overlapped
from ..choices import BYTES, LIBRARY, PREDICTED, fastest, table
from ..settings import settings
from ..timing import forced, median_of, slowest
from . import buckets

# Mechanisms that are tried, beside that of PREDICTED: variants of engines, slices of a sum, and SMs that sum.
CANDIDATES = {
    "allgather": [f"copy-engine trigger=direct variant={variant}" for variant in ("b2b", "pcpy", "ring")],
    "reducescatter": [f"copy-engine sum-slices={slices} sum-workers={workers} trigger=direct"
                      for slices, workers in ((1, 32), (2, 32), (4, 16), (8, 16), (16, 32))],
    "allreduce": [f"copy-engine sum-slices={slices} sum-workers={workers} trigger=direct"
                  for slices, workers in ((1, 32), (2, 32), (8, 16), (16, 32))],
}  # fmt: skip
MOST_SIZES = 8  # of a kind of bucket that are measured
SIDE = 4096  # of the products beside a bucket: they fill a GPU
LONGER = 1.5  # the products' time over that of c10d's collective alone, so that either may be hidden


def tune(used, step, confirm):
    """Enters the fastest mechanisms into the table. used: {(group, shape, device): sizes in elements}.

    With confirm, the step decides, over so many turns. An exception leaves what it confirmed last; at first c10d.
    """
    new = {bucket: sizes for bucket, sizes in used.items() if bucket[1].key not in table.rows}
    by_one = {choice: {shape: rows_of(shape, [(max(sizes), choice)]) for (_, shape, _), sizes in new.items()}
              for choice in (LIBRARY, PREDICTED)}  # fmt: skip
    found, kept = {}, by_one[LIBRARY] if confirm else {}
    try:
        for (group, shape, device), sizes in new.items():
            with torch.cuda.device(device):
                found[shape] = rows_of(shape, fastest(measure(group, shape, spread(sizes), device)))
        if not confirm:
            kept = found
        for kept in confirmed(step, confirm, [by_one[LIBRARY], by_one[PREDICTED], found]):
            pass
    finally:
        enter(kept)


def enter(rows):
    for shape, of_shape in rows.items():
        table.enter(shape, of_shape)


def rows_of(shape, rows):
    """Buckets below min_bucket_bytes stay with c10d, unless smaller ones were measured."""
    least = settings.min_bucket_bytes // BYTES[shape.dtype]
    return rows if rows[0][0] < least else [(least - 1, LIBRARY), *rows]


def spread(sizes):
    """At most MOST_SIZES of some sizes: the least, the largest, and some between."""
    ordered = sorted(sizes)
    if len(ordered) <= MOST_SIZES:
        return ordered
    return [ordered[i * (len(ordered) - 1) // (MOST_SIZES - 1)] for i in range(MOST_SIZES)]


def measure(group, shape, sizes, device):
    """Times in microseconds until a bucket and products beside it are done: {elements: {choice: time}}."""
    products, found = Products(), {}
    for elements in sizes:
        with forced(LIBRARY):
            alone = slowest(group, [median_of(group, collective(group, shape, elements, device))])[0]
        products.fill(group, LONGER * alone)
        choices = [LIBRARY, *dict.fromkeys((PREDICTED, *CANDIDATES[shape.op]))]
        times = [makespan_us(group, shape, elements, device, products, choice) for choice in choices]
        found[elements] = dict(zip(choices, slowest(group, times)))
    return found


class Products:
    """Products that fill the GPU for some time."""

    def __init__(self):
        self.a, self.b, self.out = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(3))
        self.count = 1

    def fill(self, group, us):
        self.count = 4  # enough to measure
        each = slowest(group, [median_of(group, self.launch)])[0] / self.count
        self.count = max(round(us / each), 1)

    def launch(self):
        for _ in range(self.count):
            torch.mm(self.a, self.b, out=self.out)


def makespan_us(group, shape, elements, device, products, choice):
    with forced(choice):
        move = collective(group, shape, elements, device)
        side = buckets.side_stream(device, shape.op)

        def launch():
            current = torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                move()
            products.launch()
            current.wait_stream(side)

        return median_of(group, launch)


def collective(group, shape, elements, device):
    """A function that moves a bucket of random numbers by the choice that is forced."""
    on, dtype = torch.device("cuda", device), overlapped.dtype_named(shape.dtype)
    process_group, shard = group.process_group, elements // group.size
    if shape.op == "allgather":
        out = buckets.empty_gathered(elements, dtype, on, process_group)
        own = out[group.rank * shard : (group.rank + 1) * shard].normal_()
        return lambda: buckets.gather(out, own, process_group)
    if shape.op == "reducescatter":
        out = torch.empty(shard, dtype=torch.float32 if shape.f32_sums else dtype, device=on)
        sent = out.dtype if table.forced == LIBRARY else dtype  # as FSDP2 itself sends them
        parts = torch.randn(elements, device=on).to(sent)
        return lambda: buckets.scatter(out, parts, process_group, dist.ReduceOp.AVG)
    x = torch.randn(elements, device=on).to(dtype)
    return lambda: buckets.reduce(x, process_group, 1 / group.size).wait()


def confirmed(step, turns, ways):
    """Yields rows by which the step is faster and faster: all buckets by one of the ways, then one kind at a time."""
    if turns == 0 or not ways[0]:
        return
    rows = fastest_step(step, turns, ways)
    yield rows
    for op in sorted({shape.op for shape in rows}):
        others = [rows | {shape: way[shape] for shape in rows if shape.op == op} for way in ways]
        rows = fastest_step(step, turns, [rows, *(other for other in others if other != rows)])
        yield rows


def fastest_step(step, turns, tried):
    """The rows by which the step takes least on the slowest rank, in turns; the first of equals."""
    times = [[] for _ in tried]
    try:
        for turn in range(turns + 1):
            for rows, of_rows in zip(tried, times):
                enter(rows)
                us = step_us(step)
                if turn > 0:  # the first declares operators
                    of_rows.append(us)
    finally:
        for shape in tried[0]:
            table.rows.pop(shape.key, None)
    medians = [statistics.median(of_rows) for of_rows in times]
    return tried[medians.index(min(medians))]


def step_us(step):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    us = torch.tensor([begin.elapsed_time(end) * 1e3], device="cuda")
    dist.all_reduce(us, op=dist.ReduceOp.MAX)
    return us.item()
