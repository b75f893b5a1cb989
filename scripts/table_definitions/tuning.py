"""Searches: what they cost, and what tuned settings gain."""

from .common import one, pick, short, table, us


@table("co-tuning-cost", "predicted/co_tuning_a40x8-nvlink")
def co_tuning_cost(record):
    rows = [one(record, collectives=count) for count in (1, 2, 4, 8, 16)]
    every = [float(row["configurations"]) ** int(row["collectives"]) for row in rows]
    return ["collectives", *(row["collectives"] for row in rows)], [
        ["configurations measured", *(row["evaluations"] for row in rows)],
        ["`autoccl`", *(row["autoccl_evaluations"] for row in rows)],
        [
            "all",
            *(f"{n:.0f}" if n < 1e6 else f"{n:.1e}".replace("e+0", "e").replace("e+", "e") for n in every),
        ],
    ]


@table("co-tuning-gain", "predicted/co_tuning_gain_a40x8-nvlink")
def co_tuning_gain(record):
    slowdowns = list(dict.fromkeys(row["slowed_by"] for row in record.rows))
    ratios = list(dict.fromkeys(row["over_computation"] for row in record.rows))

    def gain(slowdown, ratio):
        row = one(record, slowed_by=slowdown, over_computation=ratio)
        return f"{us(row, 'library_us') / us(row, 'us'):.2f}"

    return ["slowed by", *(f"{float(ratio):g}" for ratio in ratios)], [
        [f"{100 * (float(slowdown) - 1):.0f}%", *(gain(slowdown, ratio) for ratio in ratios)] for slowdown in slowdowns
    ]


@table("nccl-tuner-loops-2", *(f"h200x2/loops_{name}" for name in ("fsdp", "tp", "tp_116", "tp_ddp", "slow_link")))
def nccl_tuner_loops_2(*records):
    """Times of an iteration in milliseconds, and what is exposed of the communication with NCCL's default."""
    rows = []
    for record, where in zip(records, ("", "", ", products on 116 SMs", "", ", no peer access")):
        found = {(row["timed"], row["config"]): us(row) / 1e3 for row in record.rows}
        iteration = {config: time for (timed, config), time in found.items() if timed == "iteration"}
        notes = record.notes
        exposed, alone = (found[timed, "default"] for timed in ("exposed", "communication_alone"))
        rows.append([
            f"{notes['loop']}, {notes['layers']} layers, {notes['tokens']} tokens{where}",
            *(f"{iteration[config]:.2f}" if config in iteration else "" for config in ("default", "autoccl", "online")),
            f"{exposed:.1f} of {alone:.1f}",
        ])  # fmt: skip
    return ["loop", "NCCL's default", "AutoCCL-like", "online", "exposed"], rows


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


@table("tuning-search", "xeon-2core/search")
def tuning_search(record):
    every = [us(row, "exhaustive_us") for row in record.rows]
    return ["waves", *(row["waves"] for row in record.rows)], [
        ["model and search, ms", *(short(us(row) / 1e3) for row in record.rows)],
        ["all partitions one by one, ms", *(short(time / 1e3) if time else "–" for time in every)],
    ]
