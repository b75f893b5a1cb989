"""The tables of README.md and docs, for scripts/tables.py: one function each, from records to a head and rows."""

import math

TABLES = {}


def table(name, *sources):
    """Registers a function that makes (head, rows) of the records named."""

    def register(function):
        TABLES[name] = (function, sources)
        return function

    return register


# Helpers of the definitions.


def pick(record, /, **wanted):
    """Returns the record's rows whose columns have these values."""
    return [row for row in record.rows if all(row.get(key) == str(value) for key, value in wanted.items())]


def one(record, /, **wanted):
    found = pick(record, **wanted)
    if len(found) != 1:
        raise SystemExit(f"tables.py: {len(found)} rows with {wanted} in the record of '{record.notes['command']}'")
    return found[0]


def us(row, key="median_us"):
    return float(row[key])


def speedup(row):
    return us(row, "sequential_us") / us(row)


def geomean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def quantile(values, fraction):
    """Returns a quantile as bench/report.hpp computes it."""
    ordered = sorted(values)
    return ordered[int(fraction * (len(ordered) - 1) + 0.5)]


def values_of(record, key, /, **wanted):
    """Returns the distinct values of a column of the record's rows, numbers in order."""
    found = list(dict.fromkeys(row[key] for row in pick(record, **wanted)))
    return sorted(found, key=int) if all(value.isdigit() for value in found) else found


def short(value):
    """Returns three significant digits, or all digits before the decimal point."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.{2 if value < 9.995 else 1}f}"


def percent(value):
    return f"{100 * value:.1f}%"


def size(count):
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


# The tables.


@table("cuda-gemm", "h200x1/gemm")
def cuda_gemm(record):
    """Speed relative to cuBLASLt: with idle hooks, and with tiles that are stored to slots and counted."""
    ratio = lambda case, timed: us(one(record, timed="library", **case)) / us(one(record, timed=timed, **case))
    rows, idle, hooked = [], [], []
    for n, k in dict.fromkeys((row["n"], row["k"]) for row in record.rows):
        cases = [{"m": m, "n": n, "k": k} for m in values_of(record, "m", n=n, k=k)]
        tiles = [one(record, timed="idle", **case)["tile"].replace("x", "×") for case in cases]
        idle += (plain := [ratio(case, "idle") for case in cases])
        hooked += (slots := [ratio(case, "tile") for case in cases])
        rows.append([f"{', '.join(case['m'] for case in cases)} × {n} × {k}", ", ".join(dict.fromkeys(tiles)),
                     ", ".join(f"{r:.2f}" for r in plain), ", ".join(f"{r:.2f}" for r in slots)])  # fmt: skip
    rows.append(
        [f"geometric mean of {len(idle)}; least", "", *(f"{geomean(r):.3f}; {min(r):.3f}" for r in (idle, hooked))]
    )
    return ["M×N×K", "tile", "hooks idle", "slots and signals"], rows


def over(record, name, base, key, case):
    """Returns the relative excess of a time over a base time in one case; column `key` selects both."""
    return us(one(record, **{key: name}, **case)) / us(one(record, **{key: base}, **case)) - 1


@table("cuda-gemm-hooks", "h200x1/gemm_overhead")
def cuda_gemm_hooks(record):
    """Median cost of active hooks over idle hooks."""
    cases = [{key: row[key] for key in "mnk"} for row in pick(record, timed="idle")]
    hooks = {"tiles": "tile", "subtokens": "subtoken", "subtiles": "subtile"}
    costs = [quantile([over(record, hook, "idle", "timed", case) for case in cases], 0.5) for hook in hooks.values()]
    return ["", *hooks], [[f"median of {len(cases)}", *map(percent, costs)]]


@table("cuda-gemm-small", "h200x1/gemm_small")
def cuda_gemm_small(record):
    """Speed relative to cuBLASLt, with idle hooks."""
    shapes = list(dict.fromkeys((row["n"], row["k"]) for row in record.rows if row["m"] == "16"))
    rows = []
    for m in values_of(record, "m"):
        cells = []
        for n, k in shapes:
            case = {"m": m, "n": n, "k": k}
            cells.append(f"{us(one(record, timed='library', **case)) / us(one(record, timed='idle', **case)):.2f}")
        rows.append([m, *cells])
    names = [f"{n}×{k}" for n, k in shapes]
    return ["M", f"N×K: {names[0]}", *names[1:]], rows


@table("cuda-rmsnorm-restore", "h200x1/rmsnorm_restore")
def cuda_rmsnorm_restore(record):
    """Cost of rows gathered from tiles, over rows of a plain matrix."""
    rows = []
    for granularity in ("tile", "subtile", "subtoken"):
        keys = ("granularity", "hidden", "rows", "residual")
        cases = [{key: row[key] for key in keys} for row in pick(record, granularity=granularity, timed="plain")]
        costs = [over(record, "fused", "plain", "timed", case) for case in cases]
        rows.append([f"{granularity}s", percent(sum(costs) / len(costs)), percent(max(costs))])
    return ["rows come from", "mean", "most"], rows


def flashoverlap(of):
    """Geometric means of speed-ups by operator and mechanism. `of` selects the rows of both, by routing."""
    mechanisms = ["chunked", "signal", "fused"]
    rows = []
    for name, cases in of.items():
        rows.append(
            [
                name,
                *(
                    " / ".join(f"{geomean(map(speedup, case(mechanism))):.2f}" for case in cases)
                    for mechanism in mechanisms
                ),
            ]
        )
    return ["", *mechanisms], rows


@table("cuda-flashoverlap-4", "h200x4/flashoverlap")
def cuda_flashoverlap_4(record):
    of = {
        op: [lambda contender, op=op: pick(record, op=op, contender=contender)]
        for op in ("gemm+allreduce", "gemm+reducescatter")
    }
    routings = values_of(record, "layer", op="gemm+alltoall")
    of[f"gemm+alltoall, {' / '.join(routings)}"] = [
        lambda contender, layer=layer: pick(record, op="gemm+alltoall", contender=contender, layer=layer)
        for layer in routings
    ]
    return flashoverlap(of)


@table("cuda-flashoverlap-2", "h200x2/flashoverlap", "h200x2/alltoall")
def cuda_flashoverlap_2(record, alltoall):
    of = {
        op: [lambda contender, op=op: pick(record, op=op, contender=contender)]
        for op in ("gemm+allreduce", "gemm+reducescatter")
    }
    of["gemm+alltoall"] = [lambda contender: pick(alltoall, contender=contender)]
    return flashoverlap(of)


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


@table("cuda-sums-4", "h200x4/sums")
def cuda_sums_4(record):
    return speedups(record, lines_by_k(SUMS, (1024, 3584, 7168)), lambda contender: contender.startswith("fused"))


@table("cuda-sums-2", "h200x2/sums")
def cuda_sums_2(record):
    return speedups(record, lines_by_k(SUMS, (1024, 3584, 7168)), lambda contender: contender == "auto")


@table("cuda-layers-4", "h200x4/layers_tp8")
def cuda_layers_4(record):
    return speedups(record, LAYERS_TP8, lambda contender: contender == "auto")


@table("cuda-layers-2", "h200x2/layers_tp8")
def cuda_layers_2(record):
    return speedups(record, LAYERS_TP8, lambda contender: contender == "auto")


@table("cuda-auto", "h200x4/suite", "h200x2/suite", "h200x4/suite_predicted")
def cuda_auto(four, two, predicted):
    """Geometric mean and minimum of the speed-ups, and the number of shapes that stay sequential."""
    rows = []
    ranges = {"16, 64": (16, 64), "256 to 1024": (256, 1024), "2048 to 8192": (2048, 8192), "all": (16, 8192)}
    for name, (first, last) in ranges.items():
        cells = []
        for record in (four, two, predicted):
            found = [row for row in pick(record, contender="auto") if first <= int(row["m"]) <= last]
            kept = sum(row["plan"].startswith("sequential") for row in found)
            cells += [f"{geomean(map(speedup, found)):.2f}", f"{min(map(speedup, found)):.2f}"]
            cells += [f"{kept} of {len(found)}"] if record is not predicted else []
        rows.append([name, *cells])
    return ["M", "four GPUs", "least", "`sequential`", "two GPUs", "least", "`sequential`",
            "four, predictions alone", "least"], rows  # fmt: skip


@table("cuda-partitions", "h200x4/partitions")
def cuda_partitions(record):
    """Geometric means of named partitions relative to the one that Alg. 1 finds."""
    shapes = {}
    for row in record.rows:
        for name in row["names"].split("/"):
            shapes.setdefault(tuple(row[key] for key in ("op", "m", "n", "k")), {})[name] = us(row)
    against = lambda name: [times[name] / times["searched"] for times in shapes.values() if name in times]
    searches = [float(row["search_us"]) for row in record.rows if row["search_us"]]
    equal = ", ".join(f"{geomean(against(f'equal {waves}')):.2f}" for waves in (1, 2, 4))
    return ["", f"{len(shapes)} shapes"], [
        ["the fastest partition takes, of the time of Alg. 1's", f"{geomean(against('fastest')):.3f}"],
        ["equal groups of 1, 2, 4 waves take", f"{equal} times as long"],
        ["a wave mistaken by 20 tiles takes", f"{geomean(against('mistaken')):.2f} times as long"],
        ["time of the search, median", f"{quantile(searches, 0.5):.0f} µs"],
    ]


@table("cuda-async-tp", "h200x2/async_tp", "h200x2/layers_tp8")
def cuda_async_tp(record, layers):
    """Microseconds of async-TP, then of `auto`."""
    sizes = values_of(record, "m")
    rows = []
    for name, case in LAYERS_TP8:
        if case["op"] == "gemm+allreduce":
            continue
        cells = []
        for m in sizes:
            theirs = pick(record, m=m, timed="async_tp", **case)
            cells.append(f"{us(theirs[0]):.0f}, {us(one(layers, m=m, contender='auto', **case)):.0f}" if theirs else "")
        rows.append([name, *cells])
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


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


@table("fused-unregistered-2", "h200x2/unregistered")
def fused_unregistered_2(record):
    sizes = values_of(record, "m")
    ours = {"fused": "fused:comm-order=ring", "fused, unregistered": "fused:comm-order=ring:unregistered"}
    line = lambda name, contender, key: [name, *(f"{us(one(record, m=m, contender=contender), key):.0f}" for m in sizes)]
    rows = [line("sequential", "sequential", "median_us")]
    for name, contender in ours.items():
        rows += [line(name, contender, "median_us"), line(f"{name}, predicted", contender, "predicted_us")]
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


def fastest_copies(record, op, count):
    ours = [row for row in pick(record, op=op, bytes=count) if row["contender"] != "NCCL"]
    return us(one(record, op=op, bytes=count, contender="NCCL")), min(ours, key=us)


@table("copy-engine-2", "h200x2/copy_engine")
def copy_engine_2(record):
    """Microseconds of NCCL, then of the fastest variant. Last line: the rate of an all-gather by engines."""
    sizes = [2**16, 2**20, 2**22, 2**24, 2**26, 2**28, 2**30, 2**32]
    rows = []
    for op in ("allgather", "alltoall"):
        found = [fastest_copies(record, op, count) for count in sizes]
        rows.append([op, *(f"{short(nccl)}, {short(us(ours))}" for nccl, ours in found)])
    rates = [float(fastest_copies(record, "allgather", count)[1]["gbps_out"]) for count in sizes]
    rows.append(["allgather, GB/s out of each", *map(short, rates)])
    return ["", *map(size, sizes)], rows


@table("copy-engine-4", "h200x4/copy_engine")
def copy_engine_4(record):
    sizes = values_of(record, "bytes")
    rows = []
    for op in ("allgather", "alltoall"):
        found = [fastest_copies(record, op, count) for count in sizes]
        rows.append(
            [
                op,
                *(f"{short(nccl)}, {short(us(ours))}" for nccl, ours in found),
                f"{float(found[-1][1]['gbps_out']):.0f}",
            ]
        )
    return ["µs", *(size(int(count)) for count in sizes), "GB/s out of each"], rows


@table("copy-engine-4-variants", "h200x4/copy_engine")
def copy_engine_4_variants(record):
    """GB/s out of each GPU at 1 GiB."""
    variants = {"`b2b`": "b2b", "`b2b`, prelaunched": "b2b'", "`pcpy`": "pcpy", "`pcpy`, prelaunched": "pcpy'"}
    rate = lambda op, variant: float(one(record, op=op, contender=variant, bytes=2**30)["gbps_out"])
    rows = [[op, *(f"{rate(op, variant):.0f}" for variant in variants.values())] for op in ("allgather", "alltoall")]
    return ["", *variants], rows


@table("copy-engine-beside", "h200x2/copy_engine_beside")
def copy_engine_beside(record):
    rows = []
    for row in pick(record, bytes=2**29):
        name = f"{row['op']}, {'NCCL' if row['contender'] == 'NCCL' else 'engines'}"
        times = [f"{us(row, key):.0f}" for key in ("collective_us", "collective_beside_us")]
        rows.append([name, f"{100 * float(row['product_slowdown']):.0f}%", *times])
    return ["", "GEMM slows by", "collective alone, µs", "beside the GEMM, µs"], rows


@table("copy-engine-energy", "h200x2/copy_engine_energy")
def copy_engine_energy(record):
    rows = []
    for row in record.rows:
        name = "NCCL" if row["contender"] == "NCCL" else "engines"
        rows.append([name, *(f"{float(row[key]):.0f}" for key in ("mj", "beyond_idle_mj"))])
    return ["", "in all", "beyond idle"], rows


@table("copy-engine-emulated", "epyc-2core/copy_engine")
def copy_engine_emulated(record):
    """The largest size at which each variant is the fastest."""
    rows = []
    for op in ("allgather", "alltoall"):
        for prelaunch in ("no", "yes"):
            case = {"op": op, "prelaunch": prelaunch}
            largest = {}
            for count in values_of(record, "bytes", **case):
                largest[min(pick(record, bytes=count, **case), key=us)["variant"]] = int(count)
            middle = largest.get("bcst", largest.get("swap"))
            assert largest.keys() <= {"b2b", "bcst", "swap", "pcpy"} and largest["b2b"] < middle < largest["pcpy"]
            name = op + (", prelaunched" if prelaunch == "yes" else "")
            rows.append([name, size(largest["b2b"]), size(middle), "beyond"])
    return ["", "`b2b`", "`bcst` or `swap`", "`pcpy`"], rows


@table("co-tuning-cost", "predicted/co_tuning_a40x8-nvlink")
def co_tuning_cost(record):
    rows = [one(record, collectives=count) for count in (1, 2, 4, 8, 16)]
    configurations = 96
    every = [configurations ** int(row["collectives"]) for row in rows]
    return ["collectives", *(row["collectives"] for row in rows)], [
        ["configurations measured", *(row["evaluations"] for row in rows)],
        ["`autoccl`", *(row["autoccl_evaluations"] for row in rows)],
        [
            "all",
            *(str(count) if count < 1e6 else f"{count:.1e}".replace("e+0", "e").replace("e+", "e") for count in every),
        ],
    ]


@table("nccl-tuner-loops", "h200x4/loops")
def nccl_tuner_loops(record):
    configs = {"default": "NCCL's default", "autoccl": "AutoCCL-like", "online": "online"}
    runs = []
    for row in pick(record, timed="iteration"):  # each run lists each configuration once, NCCL's default first
        if row["config"] == "default":
            runs.append({})
        runs[-1][row["config"]] = row
    rows, seen = [], set()
    for run in runs:
        first = run["default"]
        loop, alone = first["loop"], first["compute_alone_us"]
        tokens = f"{first['tokens']} tokens{' a rank' if loop == 'fsdp' else ''}"
        case = {"loop": loop, "config": "default", "compute_alone_us": alone}
        compute, exposed, communication = (
            us(one(record, timed=timed, **case)) for timed in ("compute", "exposed", "communication_alone")
        )
        times = [f"{us(run[config]) / 1e3:.2f}" if config in run else "" for config in configs]
        beside = [f"{compute / float(alone):.2f}", f"{exposed / 1e3:.1f} of {communication / 1e3:.1f}"]
        rows.append([f"{loop}, {'once more' if loop in seen else tokens}", *times, *beside])
        seen.add(loop)
    return ["loop", *configs.values(), "GEMMs beside / alone", "exposed"], rows


@table("nccl-tuner-cost", "epyc-2core/nccl_tuner")
def nccl_tuner_cost(record):
    nanoseconds = lambda mode, rank: f"{float(one(record, mode=mode, rank=rank)['median_ns']):.0f}"
    modes = {"no table": "nothing to do", "a table": "table", "online tuning": "online, tuning"}
    return ["ns, median", "leader", "other ranks"], [
        [name, *(nanoseconds(mode, rank) for rank in ("leader", "follower"))] for name, mode in modes.items()
    ]


@table("simulator-accuracy", "epyc-2core/prediction")
def simulator_accuracy(record):
    errors = {}
    for row in record.rows:
        error = abs(us(row, "predicted_us") / us(row, "measured_us") - 1)
        errors.setdefault("all", []).append(error)
        errors.setdefault(row["mechanism"], []).append(error)
    line = lambda name: [
        name,
        len(errors[name]),
        percent(quantile(errors[name], 0.5)),
        percent(quantile(errors[name], 0.9)),
    ]
    return ["mechanism", "cases", "median error", "p90"], [
        line("all"),
        *(line(name) for name in sorted(errors) if name != "all"),
    ]


@table("co-tuning-gains", "predicted/lagom_models")
def co_tuning_gains(record):
    """Speed over NCCL's default: minimum and maximum over the models."""
    rows = []
    for parallelism, gpus in dict.fromkeys((row["parallelism"], row["gpus"]) for row in record.rows):
        case = {"parallelism": parallelism, "gpus": gpus}
        cells = [pick(record, **case)[0]["paper"].rstrip("x").replace("-", "–")]
        for profile, contention in (("a40x8-nvlink", "shipped"), ("a40x8-nvlink", "paper"), ("a40x8-pcie", "shipped")):
            gains = [
                float(row["over_nccl"]) for row in pick(record, machine_profile=profile, contention=contention, **case)
            ]
            cells.append("–".join(dict.fromkeys(f"{gain:.2f}" for gain in (min(gains), max(gains)))))
        rows.append([f"{parallelism.upper()}, {gpus} GPUs", *cells])
    slowed = "the same, where NCCL's default slows products by 35%"
    return ["", "paper", "a40x8-nvlink as it ships", slowed, "a40x8-pcie"], rows


@table("ring-bound", "predicted/ring_bound")
def ring_bound(record):
    """Time beyond the GEMM's. Operators with equal figures share lines."""
    fractions = values_of(record, "comm_over_gemm")
    plans = {"ring, 2 slices": ("ring", 2), "ring, 8 slices": ("ring", 8), "chunked, 8 chunks": ("chunked", 8)}
    lines = {}
    for op in values_of(record, "op"):
        cells = []
        for plan, (mechanism, slices) in plans.items():
            case = {"op": op, "mechanism": mechanism, "slices": slices}
            beyond = [float(one(record, comm_over_gemm=fraction, **case)["exposed"]) for fraction in fractions]
            cells.append((plan, *(f"{time:.3f}" if time > 1e-6 else "0" for time in beyond)))
        lines.setdefault(tuple(cells), []).append(op)
    rows = [[", ".join(ops) if i == 0 else "", *cells] for same, ops in lines.items() for i, cells in enumerate(same)]
    return ["operator", "plan", f"comm/GEMM {fractions[0]}", *fractions[1:]], rows


@table("simulator-scale", "xeon-2core/simulator_rings")
def simulator_scale(record):
    full = {row["ranks"]: row for row in record.rows if row["planned"] == row["ranks"]}
    symmetric = {row["ranks"]: row for row in record.rows if row["planned"] != row["ranks"]}
    ranks = list(symmetric)
    line = lambda name, of, cell: [name, *(cell(of[count]) if count in of else "–" for count in ranks)]
    events, seconds = lambda row: f"{int(row['events']):,}", lambda row: f"{float(row['seconds']):.3f}"
    return ["ranks", *ranks], [
        line("full plan: events", full, events),
        line("seconds", full, seconds),
        line("symmetric: events", symmetric, events),
        line("seconds", symmetric, seconds),
        line("simulated ms, of both", symmetric, lambda row: short(us(row, "makespan_us") / 1e3)),
    ]


@table("tuning-search", "xeon-2core/search")
def tuning_search(record):
    every = [us(row, "exhaustive_us") for row in record.rows]
    return ["waves", *(row["waves"] for row in record.rows)], [
        ["model and search, ms", *(short(us(row) / 1e3) for row in record.rows)],
        ["all partitions one by one, ms", *(short(time / 1e3) if time else "–" for time in every)],
    ]


@table("tuning-repredict", "predicted/repredict_h200x8")
def tuning_repredict(record):
    """Prediction errors: of all-reduces and reduce-scatters with a mechanism, or of all plans."""
    rows = []
    for name in values_of(record, "record"):
        of = {row["of"]: row for row in pick(record, record=name)}
        found = {}
        if "searched" in of:
            found["`signal`: all-reduce; reduce-scatter"] = [of[op] for op in ("gemm+allreduce", "gemm+reducescatter")]
        for mechanism in ("signal", "fused", "chunked") if "gemm+allreduce signal" in of else ():
            ops = [of[f"{op} {mechanism}"] for op in ("gemm+allreduce", "gemm+reducescatter")]
            found[f"`{mechanism}`: all-reduce; reduce-scatter"] = ops
        for by, errors in (found or {"all plans": [of["all"]]}).items():
            cells = [[row["points"] for row in errors]]
            cells += [[percent(float(row[key])) for row in errors] for key in ("median_error", "p90_error")]
            cells.append([f"{100 * float(row['mean_error']):+.1f}%".replace("-", "−") for row in errors])
            rows.append([f"`{name}`", by, *("; ".join(cell) for cell in cells)])
    return ["record", "by", "points", "median error", "p90", "mean"], rows
