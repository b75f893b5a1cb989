"""Operators on GPUs: speed-ups of mechanisms over the sequential plan."""

import math
import re

from .common import geomean, one, percent, pick, quantile, shapes_of, short, speedup, table, us, values_of


@table("cuda-alltoall-2", "h200x2/alltoall")
def cuda_alltoall_2(record):
    """Geometric means of speed-ups by mechanism."""
    mechanisms = ["chunked", "signal", "fused"]
    means = [f"{geomean(map(speedup, pick(record, contender=mechanism))):.2f}" for mechanism in mechanisms]
    return ["", *mechanisms], [["gemm+alltoall", *means]]


def speedups(record, lines, contenders):
    """Speed-up and roofline fraction of the fastest contender: one line per (name, case), one column per M."""
    sizes = values_of(record, "m")
    rows = []
    for name, case in lines:
        cells = []
        for m in sizes:
            found = [row for row in pick(record, m=m, **case) if contenders(row["contender"])]
            best = min(found, key=us) if found else None
            cells.append(f"{speedup(best):.2f}; {float(best['roofline']):.2f}" if best else "")
        rows.append([name, *cells])
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


def lines_by_k(ops, ks):
    return [(f"{op}, K = {k}" if k == ks[0] else f"K = {k}", {"op": op, "k": k}) for op in ops for k in ks]


SUMS = ("gemm+reducescatter", "gemm+allreduce")
LAYERS_TP8 = [
    *lines_by_k(SUMS, (3584, 1024)),
    *(
        (f"allgather+gemm, N = {n}" if n == 7168 else f"N = {n}", {"op": "allgather+gemm", "n": n})
        for n in (7168, 1280)
    ),
]


@table("cuda-sums-2", "h200x2/sums_epilogue")
@table("cuda-sums-4", "h200x4/sums")
def cuda_sums(record):
    return speedups(record, lines_by_k(SUMS, (1024, 3584, 7168)), lambda contender: contender == "auto")


@table("cuda-layers-2", "h200x2/layers_tp8")
@table("cuda-layers-4", "h200x4/layers_tp8")
def cuda_layers(record):
    return speedups(record, LAYERS_TP8, lambda contender: contender == "auto")


@table("cuda-auto", "h200x2/suite")
@table("cuda-auto-4", "h200x4/suite")
@table("cuda-auto-4-predicted", "h200x4/suite_predicted")
def cuda_auto(record):
    """Geometric mean and minimum of the speed-ups, and the number of shapes that stay sequential."""
    rows = []
    ranges = {"16, 64": (16, 64), "256 to 1024": (256, 1024), "2048 to 8192": (2048, 8192), "all": (16, 8192)}
    for name, (first, last) in ranges.items():
        found = [row for row in pick(record, contender="auto") if first <= int(row["m"]) <= last]
        kept = sum(row["plan"].startswith("sequential") for row in found)
        gains = list(map(speedup, found))
        rows.append([name, f"{geomean(gains):.2f}", f"{min(gains):.2f}", f"{kept} of {len(found)}"])
    return ["M", "speed-up", "least", "`sequential`"], rows


@table("cuda-auto-4-gpt3", "h200x4/suite_gpt3")
@table("cuda-auto-4-gpt3-small", "h200x4/suite_gpt3_small")
@table("cuda-auto-4-sustained", "h200x4/suite_sustained")
def cuda_auto_by_operator(record):
    """Geometric mean of the speed-ups of `auto` by operator and M, and its least."""
    sizes, rows = values_of(record, "m"), []
    for op in values_of(record, "op"):
        of = {m: [speedup(row) for row in pick(record, contender="auto", op=op, m=m)] for m in sizes}
        rows.append([op, *(f"{geomean(of[m]):.2f}" for m in sizes), f"{min(sum(of.values(), [])):.2f}"])
    return ["", *(f"M = {m}" for m in sizes), "least"], rows


@table("cuda-auto-choices", "h200x2/suite")
def cuda_auto_choices(record):
    """The mechanisms that `auto` chose, by operator and M, in the order of the layers."""
    sizes = values_of(record, "m")
    rows = []
    for op in values_of(record, "op"):
        cells = []
        for m in sizes:
            found = [row["plan"].split(":")[0] for row in pick(record, contender="auto", op=op, m=m)]
            cells.append(", ".join(f"`{mechanism}`" for mechanism in dict.fromkeys(found)))
        rows.append([op, *cells])
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


@table("cuda-signal-groups", "h200x2/signal")
def cuda_signal_groups(record):
    rows = []
    for name, contender in {"searched": "signal", "equal": "signal:groups=equal"}.items():
        row = one(record, contender=contender)
        groups = re.search(r"groups=([\d,]+)", row["plan"])[1]
        rows.append([name, groups.replace(",", ", "), f"{us(row):.0f}", f"{speedup(row):.2f}"])
    return ["groups", "waves", "µs", "speed-up"], rows


@table("fused-helpers-2", "h200x2/helpers")
def fused_helpers_2(record):
    cases = [{"op": op, "m": m, "k": k} for op in SUMS for m in (2048, 8192) for k in (1024, 3584)]
    head = [""]
    for case in cases:
        shape, op = f"{case['m']}×{case['k']}", case["op"].removeprefix("gemm+")
        head.append(f"{op} {shape}" if case in (cases[0], cases[4]) else shape)
    tile = "fused:tile=128x256:comm-order="
    contenders = {
        "sequential": "sequential",
        "no helpers": f"{tile}ring:helpers=none",
        "4": f"{tile}ring:helpers=4",
        "16": f"{tile}ring:helpers=16",
        "16, shards in turn": f"{tile}interleaved:helpers=16",
        "4, without rotation": f"{tile}same:helpers=4",
        "16, tiles of 128×128": "fused:tile=128x128:helpers=16",
    }
    return head, [
        [name, *(f"{us(one(record, contender=contender, **case)):.0f}" for case in cases)]
        for name, contender in contenders.items()
    ]


@table("fused-sums-2", "h200x2/sums", "h200x2/sums_epilogue")
def fused_sums_2(by_passes, by_default):
    rows = []
    for op in SUMS:
        for k in (1024, 3584, 7168):
            cells = []
            for m in (1024, 2048, 8192):
                case = {"op": op, "m": m, "k": k, "contender": "fused"}
                now = one(by_default, **case)
                where = "epilogue" if "epilogue" in now["plan"] else "pass"
                cells.append(f"{us(one(by_passes, **case)):.0f}, {us(now):.0f} ({where})")
            rows.append([f"{op.removeprefix('gemm+')}, K = {k}", *cells])
    return ["", "M = 1024", "2048", "8192"], rows


@table("fused-unregistered-2", "h200x2/unregistered")
def fused_unregistered_2(record):
    sizes = values_of(record, "m")
    ours = {"fused": "fused:comm-order=ring", "fused, unregistered": "fused:comm-order=ring:unregistered"}
    line = lambda name, contender, key: [name, *(f"{us(one(record, m=m, contender=contender), key):.0f}" for m in sizes)]
    rows = [line("sequential", "sequential", "median_us")]
    for name, contender in ours.items():
        rows += [line(name, contender, "median_us"), line(f"{name}, predicted", contender, "predicted_us")]
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


@table("reduce-add-2", "h200x2/reduce_add")
def reduce_add_2(record):
    """Time to store or add the other rank's shard, then until all sums are there, in microseconds."""
    ways = {"staging": "staged, then summed", "reduce-add": "added", "by TMA": "added by TMA"}
    counts = values_of(record, "ctas")
    return ["", *(f"{count} CTAs" for count in counts)], [
        [name, *(", ".join(f"{us(one(record, timed=timed, ctas=count, way=way)):.0f}" for timed in ("sent", "all"))
                 for count in counts)]
        for way, name in ways.items()
    ]  # fmt: skip


def hidden(row):
    """The part of what sequential takes beyond its computation that is saved."""
    alone = float(row["compute_us"])
    return 1 - (us(row) - alone) / (us(row, "sequential_us") - alone)


@table("cuda-attention", "h200x2/attention", "h200x2/ring_attention", "h200x2/ring_attention_grouped")
def cuda_attention(*records):
    """Times in ms and hidden parts: sequential, the fastest ring of each kind, fused; those that records have."""
    ways = {
        "sequential": lambda name: name == "sequential",
        "ring, messages": lambda name: name == "ring",
        "ring, engines": lambda name: name.startswith("ring:") and "engines=" in name,
        "ring, stores": lambda name: name.startswith("ring:") and "mover=store" in name,
        "fused": lambda name: name == "fused",
    }
    rows = []
    for record in records:
        shapes = dict.fromkeys((row["op"], row["m"], row["heads"], row["kv_heads"], row["causal"]) for row in record.rows)
        for op, m, heads, kv_heads, causal in shapes:
            cells = []
            for served in ways.values():
                found = [row for row in pick(record, op=op, m=m, heads=heads, kv_heads=kv_heads, causal=causal)
                         if served(row["contender"]) and row["median_us"]]  # fmt: skip
                best = min(found, key=us, default=None)
                part = f"; {hidden(best):.2f}" if best and best["contender"] != "sequential" else ""
                cells.append(f"{us(best) / 1e3:.2f}{part}" if best else "")
            sizes = f"{m} tokens, {heads} heads" + (f" ({kv_heads} of K and V)" if kv_heads != heads else "")
            rows.append([f"{op}, {sizes}, {'causal' if causal == 'yes' else 'full'}", *cells])
    table = [["ms; hidden", *ways], *rows]
    kept = [column for column in zip(*table) if any(column[1:])]
    return [column[0] for column in kept], [list(cells) for cells in zip(*(column[1:] for column in kept))]


@table("signal-partitions", "h200x2/partitions", "h200x2/slow_link_partitions")
def signal_partitions(*records):
    """Time over that of the fastest partition of a shape, mean and largest over the shapes, by link."""
    ways = {"searched": "searched", "groups of one wave": "equal 1", "the best of equal groups": "equal",
            "searched for waves of 20 tiles more": "mistaken"}  # fmt: skip
    found = {name: [[] for _ in records] for name in ways}
    for at, record in enumerate(records):
        for _, overlapped in shapes_of(record):
            best = min(map(us, overlapped))
            for name, way in ways.items():
                of = [us(row) for row in overlapped if re.search(rf"\b{way}\b", row["names"])]
                if of:
                    found[name][at].append(min(of) / best)
    cells = lambda ratios: f"{sum(ratios) / len(ratios):.3f}, {max(ratios):.3f}"
    return ["", "NVLink", "no peer access"], [[name, *map(cells, by_link)] for name, by_link in found.items()]


@table("slow-link", "h200x2/slow_link")
def slow_link(record):
    """Geometric mean and minimum of the speed-ups of mechanisms."""
    mechanisms, rows = ["auto", "signal", "chunked", "ring"], []
    for op in values_of(record, "op"):
        cells = []
        for mechanism in mechanisms:
            gains = [speedup(row) for row in pick(record, op=op, contender=mechanism) if row["sequential_us"]]
            cells.append(f"{geomean(gains):.2f}, {min(gains):.2f}" if gains else "")
        rows.append([op, *cells])
    return ["", *mechanisms], rows


def overlapped_us(groups, wave, wire, product_slowed=1.0, wire_slowed=1.0):
    """Time of a plan by `signal`: a group is sent when it is computed and the wire is free.

    `wave` and `wire` are the times of a wave alone: of its product, and of its bytes on the wire. Both take so many
    times as long while the other goes on.
    """
    at, computed, ready = 0.0, 0.0, 0
    for group in groups:
        ready += group
        at += max(ready - computed, 0) * wave
        computed = max(computed, ready)
        left = (sum(groups) - computed) * wave * product_slowed
        sent = min(group, left / (wire * wire_slowed))  # waves of bytes that are sent beside the product
        computed += sent * wire * wire_slowed / (wave * product_slowed)
        at += sent * wire * wire_slowed + (group - sent) * wire
    return at


def groups_of(row):
    return [int(waves) for waves in re.search(r"groups=([\d,]+)", row["plan"])[1].split(",")]


def wire_us(link, op, elements):
    """Returns the median time of a collective of so many elements: sequential plans, less the product alone."""
    rows = [row for row in pick(link, op=op, contender="sequential") if int(row["m"]) * int(row["n"]) == elements]
    return quantile([us(row) - us(row, "compute_us") for row in rows], 0.5)


@table("slow-link-losses", "h200x2/slow_link_partitions", "h200x2/slow_link")
def slow_link_losses(partitions, link):
    """What the fastest partition loses to the limit, where only the wire or the product counts.

    How much slower the product is beside the wire is fitted to all partitions that have all waves of a shape.
    """
    rows = []
    for sequential, overlapped in shapes_of(partitions):
        op, (m, n) = sequential["op"], (int(sequential[key]) for key in "mn")
        if op == "gemm+alltoall":  # `link` has none of as many bytes
            continue
        most = max(sum(groups_of(row)) for row in overlapped)
        found = [(groups_of(row), us(row)) for row in overlapped if sum(groups_of(row)) == most]
        wire = wire_us(link, op, m * n)
        product = us(sequential) - wire
        kept = next(time for groups, time in found if len(groups) == 1) - us(sequential)
        predicted = lambda groups, *slowed: overlapped_us(groups, product / most, wire / most, *slowed)
        error = lambda *slowed: math.sqrt(
            sum(((predicted(groups, *slowed) + kept) / time - 1) ** 2 for groups, time in found) / len(found)
        )
        factors = [1 + step / 50 for step in range(101)]
        slowed = min(factors, key=error)
        groups, fastest = min(found, key=lambda item: item[1])
        limit, ideal = max(product, wire), predicted(groups)
        rows.append([
            op, "×".join(sequential[key] for key in "mnk"), short(us(sequential) / limit),
            short(us(sequential) / fastest), f"{slowed:.2f}", percent(error(slowed)), percent(error()),
            percent(min(error(1, factor) for factor in factors)),
            *(percent(loss / fastest) for loss in (ideal - limit, predicted(groups, slowed) - ideal, kept)),
        ])  # fmt: skip
    return ["operator", "M×N×K", "limit", "fastest", "product slowed", "error", "error, nothing slowed",
            "error, collective slowed", "first and last group", "slowed product", "hooks and restore"], rows  # fmt: skip
