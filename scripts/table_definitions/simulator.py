"""Predictions beside measurements, and the cost of a simulation."""

from .common import geomean, one, percent, pick, quantile, short, table, us, values_of


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


def prediction_errors(row):
    mean = f"{100 * float(row['mean_error']):+.1f}%".replace("-", "−")
    return [row["points"], *(percent(float(row[key])) for key in ("median_error", "p90_error")), mean]


@table("tuning-repredict", "predicted/repredict_h200x8")
def tuning_repredict(record):
    """Prediction errors of all plans of a record."""
    rows = [[f"`{name}`", *prediction_errors(one(record, record=name, of="all"))]
            for name in values_of(record, "record")]  # fmt: skip
    return ["record", "points", "median error", "p90", "mean"], rows


@table("tuning-slow-link", "predicted/repredict_h200x2-nop2p")
def tuning_slow_link(record):
    """Prediction errors by operator and mechanism."""
    rows = [[of, *prediction_errors(one(record, of=of))] for of in values_of(record, "of")]
    return ["plans", "points", "median error", "p90", "mean"], rows


@table("tuning-random", "h200x2/random", "h200x2/random_predicted")
def tuning_random(confirmed, predicted):
    """Speed-up over sequential of plans that auto chooses, and the errors of their predictions."""
    rows = []
    for name, record in (("`auto --confirm 3`", confirmed), ("`auto`", predicted)):
        chosen = [row for row in record.rows if row["contender"] == "auto"]
        ratios = [us(row, "sequential_us") / us(row) for row in chosen]
        errors = [abs(us(row, "predicted_us") / us(row) - 1) for row in chosen]
        rows.append([name, len(chosen), f"{geomean(ratios):.3f}, {min(ratios):.3f}",
                     percent(quantile(errors, 0.5)), percent(quantile(errors, 0.9))])  # fmt: skip
    return ["", "shapes", "speed-up, least", "median error", "p90"], rows
