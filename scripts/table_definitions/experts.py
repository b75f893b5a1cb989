"""Mixtures of experts on GPUs."""

from .common import geomean, pick, table, us, values_of


def times(record, **of):
    """Times by way, for each case of the rows that `of` picks."""
    cases = {}
    for row in pick(record, **of):
        case = tuple(row.get(key) for key in ("model", "n", "k", "groups", "rows", "skewed", "tokens", "routing"))
        cases.setdefault(case, {})[row["timed"]] = us(row)
    return list(cases.values())


@table("grouped-mm", "h200x2/grouped_mm")
def grouped_mm(record):
    """Speed-up over the better of torch._grouped_mm and a loop of cuBLASLt, geometric mean and least."""
    rows = []
    for model in values_of(record, "model"):
        for groups in dict.fromkeys(row["groups"] for row in pick(record, model=model)):
            cells = []
            for skewed in values_of(record, "skewed"):
                found = [min(of["torch"], of["cublaslt_loop"]) / of["shingle"]
                         for of in times(record, model=model, groups=groups, skewed=skewed)]  # fmt: skip
                cells.append(f"{geomean(found):.2f}, {min(found):.2f}")
            rows.append([f"{model}, {groups} groups", *cells])
    return ["", "balanced", "skewed"], rows


@table("merged-slots", "h200x2/merged_slots")
def merged_slots(record):
    """Times by source and merged, in microseconds, and the speed-up of the fastest merged over the fastest by source."""
    rows = []
    for tokens in values_of(record, "m"):
        times = {row["contender"]: us(row) for row in pick(record, m=tokens)}
        ways = [f"{mechanism}:slots={order}" for order in ("by-source", "merged") for mechanism in ("sequential", "fused")]
        if all(way in times for way in ways):
            cells = [times[way] for way in ways]
            rows.append([tokens, *(f"{time:.0f}" for time in cells), f"{min(cells[:2]) / min(cells[2:]):.2f}"])
    return ["tokens of a rank", "by source: `sequential`", "`fused`", "merged: `sequential`", "`fused`", "speed-up"], rows


@table("experts", "h200x2/experts")
@table("experts-4", "h200x4/experts")
@table("sliced-experts", "h200x2/experts_sliced")
@table("sliced-experts-4", "h200x4/experts_sliced")
@table("replicated-experts", "h200x2/experts_replicated")
@table("replicated-experts-4", "h200x4/experts_replicated")
def experts(record):
    """Times of baselines, then by mechanisms, in microseconds, and the speed-up over the fastest baseline."""
    baselines, mechanisms, rows = ("torch", "vllm"), ("sequential", "signal", "fused"), []
    for model in values_of(record, "model"):
        for op in values_of(record, "op"):
            cells = []
            for tokens in values_of(record, "tokens"):
                of = {row["timed"]: row for row in pick(record, model=model, op=op, tokens=tokens, routing="uniform")}
                if not of:
                    cells.append("")
                    continue
                theirs, ours = ([us(of[way]) for way in ways if way in of] for ways in (baselines, mechanisms))
                cells.append(f"{', '.join(f'{time:.0f}' for time in theirs + ours)}; {min(theirs) / min(ours):.2f}")
            rows.append([f"{model}, {op}", *cells])
    return ["", *(f"{tokens} tokens" for tokens in values_of(record, "tokens"))], rows
