"""The instrumented GEMM and row-wise passes beside plain ones."""

from .common import geomean, one, percent, pick, quantile, table, us, values_of


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


@table("cuda-gemm-random", "h200x1/gemm_random")
def cuda_gemm_random(record):
    """Speed relative to cuBLASLt by the library's time: with idle hooks, and with tiles stored to slots and counted."""
    shapes = list(dict.fromkeys(tuple(row[key] for key in "mnk") for row in record.rows))
    times = [{row["timed"]: us(row) for row in pick(record, **dict(zip("mnk", shape)))} for shape in shapes]
    rows = []
    for name, least, most in (("up to 100 us", 0, 100), ("100 to 500 us", 100, 500), ("longer", 500, 1e9), ("all", 0, 1e9)):
        found = [of for of in times if least < of["library"] <= most]
        ratios = [[of["library"] / of[way] for of in found] for way in ("idle", "tile")]
        rows.append([name, len(found), *(f"{geomean(r):.3f}; {min(r):.3f}" for r in ratios)])
    return ["library takes", "shapes", "hooks idle, least", "slots and signals, least"], rows


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
    """Cost of rows gathered from tiles over rows of a plain matrix, mean and largest, by columns and residual."""
    widths, rows = values_of(record, "hidden"), []
    for granularity in ("tile", "subtile", "subtoken"):
        for residual, name in (("no", ""), ("yes", ", with residual")):
            cells = []
            for hidden in widths:
                case = {"granularity": granularity, "hidden": hidden, "residual": residual}
                sizes = values_of(record, "rows", **case)
                costs = [over(record, "fused", "plain", "timed", {**case, "rows": count}) for count in sizes]
                cells.append(f"{percent(sum(costs) / len(costs))}, {percent(max(costs))}")
            rows.append([f"{granularity}s{name}", *cells])
    return ["rows come from", f"{widths[0]} columns", *widths[1:]], rows
