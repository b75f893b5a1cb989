"""The papers' figures beside ours: the records of bench/papers, row by row, then what was measured on H200."""

import functools

from .common import geomean, one, percent, pick, shapes_of, short, size, speedup, table, us, values_of

COLUMNS = ["place", "what", "paper", "ours", "how", "verdict"]
HEAD = ["where", "figure", "the paper's", "ours", "how obtained", "verdict"]
ELSEWHERE = "other hardware"
VERDICTS = ["holds", "does not hold", "fitted", ELSEWHERE, "not reproduced"]


def times(*values):
    """Returns a factor, or the range of several."""
    low, high = (f"{short(value)}x" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def shares(*values):
    low, high = (percent(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def hidden(row):
    """Overlap efficiency: the share of the communication's time that is hidden."""
    return (us(row, "sequential_us") - us(row)) / (us(row, "sequential_us") - us(row, "compute_us"))


def error(row):
    return abs(us(row, "predicted_us") / us(row) - 1)


NAMES = {"gemm+allreduce": "all-reduce", "gemm+reducescatter": "reduce-scatter", "gemm+alltoall": "all-to-all"}


def suite(record):
    """Speed and prediction by operator, of an all-to-all also by routing."""
    for op, name in NAMES.items():
        for routing in dict.fromkeys(row["layer"] for row in pick(record, op=op)):
            rows = pick(record, op=op, layer=routing, contender="signal")
            what = f"{name}{', ' + routing if routing else ''}, {len(rows)} shapes"
            yield "Fig. 10, E1", f"{what}, speed over no overlap", "1x to 1.3x (A800)", times(*map(speedup, rows))
            yield "Fig. 15, E2", f"{what}, error of the prediction", "3.44% (A800)", shares(*map(error, rows))


def signal(record):
    searched, equal = one(record, contender="signal"), one(record, contender="signal:groups=equal")
    what = "all-reduce, K = 4096, loss of groups of equal size"
    yield "Fig. 14, E2", what, "> 0", percent(us(equal) / us(searched) - 1)


def slow_link(record):
    for op, name in NAMES.items():
        gains = map(speedup, pick(record, op=op, contender="signal"))
        yield "Fig. 10, E1", f"{name}, no peer access, speed over no overlap", "1.02x to 1.65x", times(*gains)


def partitions(record, where):
    """Of each shape: the searched partition over the best one, the best one over no overlap, and errors."""
    searched, gains, errors = [], [], []
    for sequential, overlapped in shapes_of(record):
        best = min(map(us, overlapped))
        searched.append(best / us(next(row for row in overlapped if "searched" in row["names"])))
        gains.append(us(sequential) / best)
        errors += map(error, overlapped)
    yield "Fig. 15, E2", f"{where}, least speed of the searched partition, of the best one", "> 99%", percent(min(searched))
    yield "Fig. 15, E2", f"{where}, average error of the prediction", "3.41%", percent(sum(errors) / len(errors))
    yield "Fig. 15, E2", f"{where}, speed of the best partition over no overlap", "-", times(*gains)


def nvlink_partitions(record):
    return partitions(record, "all collectives, NVLink")


def slow_link_partitions(record):
    return partitions(record, "all collectives, no peer access")


def ring_reducescatter(record):
    rows = [row for row in pick(record, op="gemm+reducescatter", contender="auto") if row["plan"].startswith("ring")]
    what = "reduce-scatter by `ring`, communication hidden"
    yield "Tables 1 and 3", what, "99.7% to 99.8%", shares(*map(hidden, rows))


def ring_attention(record):
    gains, case = [], {"op": "attention+reducescatter"}
    for m in values_of(record, "m", **case):
        rings = [row for row in pick(record, m=m, **case) if row["contender"].startswith("ring")]
        gains.append(max(map(speedup, rings)))
    yield "Table 4", "attention and reduce-scatter by `ring`, over no overlap", "1.25x, 1.35x", times(*gains)


def fused(record):
    rows = [row for row in pick(record, contender="fused") if int(row["m"]) >= 1024]
    yield "Overlap efficiency", "`fused`, two ranks, M from 1024 on", "37% to 93% (H800)", shares(*map(hidden, rows))


def engines(record, ranks="two"):
    """Speed of engines over NCCL: parallel copies, and the best of all, below and above 32 MB."""
    for op, slower, faster in (("allgather", "4.5x", "1.14x"), ("alltoall", "2.5x", "1.18x")):
        below, above, best = [], [], []
        for count in values_of(record, "bytes", op=op):
            nccl = us(one(record, op=op, bytes=count, contender="NCCL"))
            pcpy = us(one(record, op=op, bytes=count, contender="pcpy"))
            fastest = min(us(row) for row in pick(record, op=op, bytes=count) if row["contender"] != "NCCL")
            if int(count) < 2**25:
                below.append(pcpy / nccl)
                best.append(fastest / nccl)
            elif int(count) > 2**25:
                above.append(nccl / pcpy)
        name, place = f"{op}, {ranks} ranks", "Figs. 13 and 14"
        yield place, f"{name}, pcpy over NCCL's time, below 32 MB", slower, times(geomean(below))
        yield place, f"{name}, the best over NCCL's time, below 32 MB", "1.3x" if op == "allgather" else "0.83x", times(
            geomean(best)
        )
        yield place, f"{name}, speed of pcpy over NCCL's, above 32 MB", faster, times(geomean(above))


def size_range(counts):
    """Returns a range of sizes in bytes, as the papers write them: 16 MB to 1 GB."""
    low, high = (size(count).replace("iB", "B") for count in (min(counts), max(counts)))
    return f"{low} to {high}"


def energy(record, ranks="two"):
    for op in ("allgather", "alltoall"):
        saved, counts = {"watts_each": [], "mj": []}, values_of(record, "bytes", op=op)
        for count in counts:
            nccl = one(record, op=op, bytes=count, contender="NCCL")
            ours = next(row for row in pick(record, op=op, bytes=count) if row is not nccl)
            for key, found in saved.items():
                found.append(1 - float(ours[key]) / float(nccl[key]))
        what = f"{op}, {ranks} ranks, {size_range([*map(int, counts)])}, below NCCL's"
        yield "Fig. 15", f"power of {what}", "32%" if op == "allgather" else "-", shares(*saved["watts_each"])
        yield "Fig. 15", f"energy of {what}", "-", shares(*saved["mj"])


def gather_between(record, gpus="two"):
    """A GEMM, an all-gather and a narrow GEMM: speed of copies over NCCL. All ranks' rows, in bf16, are gathered."""
    for trigger, option in (("host-mediated", "host"), ("direct trigger", "direct")):
        found = pick(record, contender=f"copy-engine:variant=b2b:trigger={option}:prelaunch")
        gathered = size_range([2 * int(row["m"]) * int(row["inner"]) for row in found])
        what = f"GEMM and allgather, {gathered}, {gpus} GPUs, {trigger}, b2b, speed over NCCL's"
        yield "Fig. 16, §5.5", what, "similar or better", times(*map(speedup, found))


def tuned_online(rows):
    """Speed of the loop that was tuned online over that with NCCL's default, of each pair of runs."""
    defaults, online = ([us(row) for row in rows if row["config"] == config] for config in ("default", "online"))
    return [default / own for default, own in zip(defaults, online)]


PAPERS_LOOPS = {"fsdp": "1.1x to 1.33x", "tp": "1.08x to 1.16x", "tp+ddp": "-"}


def loops(record, where="two GPUs"):
    iterations = pick(record, timed="iteration")
    for loop in dict.fromkeys(row.get("loop") or record.notes["loop"] for row in iterations):
        gains = tuned_online([row for row in iterations if row.get("loop", loop) == loop])
        yield "Fig. 7", f"{loop}, {where}, tuned online over NCCL's default", PAPERS_LOOPS[loop], times(*gains)


# By paper: the records of its program, then (record, rows of it) of measurements.
PAPERS = {
    "FlashOverlap": (
        ["flashoverlap_search", "flashoverlap_signal"],
        [
            ("h200x2/flashoverlap", suite),
            ("h200x2/signal", signal),
            ("h200x2/partitions", nvlink_partitions),
            ("h200x2/slow_link", slow_link),
            ("h200x2/slow_link_partitions", slow_link_partitions),
        ],
    ),
    "Flash-Overlap": (
        ["flash_overlap"],
        [("h200x2/layers_tp8", ring_reducescatter), ("h200x2/attention", ring_attention)],
    ),
    "FLUX": (["flux"], [("h200x2/sums", fused)]),
    "DMA collectives": (
        ["dma"],
        [
            ("h200x2/copy_engine", engines),
            ("h200x4/copy_engine", functools.partial(engines, ranks="four")),
            ("h200x2/copy_engine_energy", energy),
            ("h200x4/copy_engine_energy", functools.partial(energy, ranks="four")),
            ("h200x2/gather_between", gather_between),
            ("h200x4/gather_between", functools.partial(gather_between, gpus="four")),
        ],
    ),
    "Lagom": (
        ["lagom", "lagom_models"],
        [
            ("h200x4/loops", functools.partial(loops, where="four GPUs")),
            ("h200x2/loops_fsdp", loops),
            ("h200x2/loops_tp", loops),
            ("h200x2/loops_tp_116", functools.partial(loops, where="two GPUs, products on 116 SMs")),
            ("h200x2/loops_tp_ddp", loops),
            ("h200x2/loops_slow_link", functools.partial(loops, where="two GPUs without peer access")),
        ],
    ),
}


def sources_of(paper):
    programs, measurements = PAPERS[paper]
    return [*(f"papers/{program}" for program in programs), *(source for source, _ in measurements)]


def rows_of(paper, records):
    programs, measurements = PAPERS[paper]
    rows = [[row[column] for column in COLUMNS] for record in records[: len(programs)] for row in record.rows]
    for (source, found), record in zip(measurements, records[len(programs) :]):
        how = f"measured, `{source}`"
        rows.extend([*row, how, ELSEWHERE] for row in found(record))
    return rows


def register(paper):
    name = "papers-" + paper.lower().replace(" ", "-")
    table(name, *sources_of(paper))(lambda *records: (HEAD, rows_of(paper, records)))


for each in PAPERS:
    register(each)


@table("papers", *(source for paper in PAPERS for source in sources_of(paper)))
def papers(*records):
    """Number of figures by paper and verdict."""
    left, lines = list(records), []
    for paper in PAPERS:
        own = [left.pop(0) for _ in sources_of(paper)]
        verdicts = [row[-1] for row in rows_of(paper, own)]
        lines.append([paper, *map(verdicts.count, VERDICTS)])
    return ["paper", *VERDICTS], lines
