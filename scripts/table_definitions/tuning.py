"""Searches: what they cost, and what tuned settings gain."""

from .common import one, pick, short, table, us


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


@table("tuning-search", "xeon-2core/search")
def tuning_search(record):
    every = [us(row, "exhaustive_us") for row in record.rows]
    return ["waves", *(row["waves"] for row in record.rows)], [
        ["model and search, ms", *(short(us(row) / 1e3) for row in record.rows)],
        ["all partitions one by one, ms", *(short(time / 1e3) if time else "–" for time in every)],
    ]
