"""Converts rows of a JSON record to rows of CSV, for scripts/records.py."""

import re

# Keys of JSON that CSV omits: samples, how a row was checked, and values that other columns or the command give.
DROPPED = {
    "samples_us", "spread", "min_us", "max_us", "tile_us", "by_tile_us",
    "speedup", "overlap_efficiency", "tflops", "compute_tflops", "memory_of_output", "prediction_error", "hooks_cost",
    "cost", "ratio", "of_library_hooks", "of_library_idle", "over_default", "step_us", "slowdown",
    "tolerance", "checked", "setup_s", "choice", "predicted_sequential_us", "memory_bytes", "target", "target_us",
    "backend", "source", "params_note", "noise", "machine",
}  # fmt: skip
RENAMED = {"layer_op": "layer", "overlapped_us": "median_us", "max_error": "error", "roofline_fraction": "roofline"}
FIRST = ["layer", "op", "m", "n", "k", "dtype", "world", "contender", "mechanism", "plan", "timed"]
TIMES = ["median_us", "p25_us", "p75_us"]
DIGITS = {"error": 2, "predicted_us": 5}  # significant digits; default: six for a time, else four


def text_of(value, digits=6):
    """Returns a cell. Six significant digits exceed a clock's resolution."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{float(f'{value:.{digits}g}'):.15g}"
    if isinstance(value, list):
        return " ".join(text_of(item) for item in value)
    return str(value)


def plan_text(mechanism, params):
    """Returns a mechanism with its params as for `shingle bench --mechanism`: signal:groups=1,2:tile=128x256."""
    words = [mechanism] if mechanism else []
    words += [name if value is True else f"{name}={value}" for name, value in params.items()]
    return ":".join(words)


def problem_columns(text):
    """Returns columns of a problem such as "gemm+allreduce 1024x8192x3584 bf16, B transposed, 4 ranks"."""
    match = re.fullmatch(r"(\S+) (\d+)x(\d+)x(\d+) (\w+), (?:B transposed, )?(\d+) ranks", text)
    return dict(zip(("op", "m", "n", "k", "dtype", "world"), match.groups())) if match else {"problem": text}


def quartiles(value):
    """Returns median and quartiles of an object with times, as bench/report.hpp does, or None without times."""
    us = {key.removesuffix("_us"): item for key, item in value.items()}
    if "median" not in us:
        return None
    samples = sorted(us.get("samples", []))
    at = lambda fraction: samples[int(fraction * (len(samples) - 1) + 0.5)] if samples else None
    return dict(zip(TIMES, (us["median"], us.get("p25", at(0.25)), us.get("p75", at(0.75)))))


def without(row, *keys):
    return {key: value for key, value in row.items() if key not in keys}


def partition(point, shape):
    """Returns a point of a shape of bench_partitions. The fastest is marked; the searched one has the search's time."""
    names, us = point["names"], shape["search_us"] if "searched" in point["names"] else None
    fastest = point["group_waves"] and point["time"]["median_us"] == shape["best_us"]
    names = [*names, "fastest"] if fastest else names
    return {**point, "names": names, "search_us": us}


def flat(row):
    """Converts a JSON object to CSV rows: one for each timed thing, or for each object of a list."""
    case, timed, inner = {}, {}, []
    if row.get("mechanism") and isinstance(row.get("params"), dict):
        row = {**without(row, "mechanism", "params"), "plan": plan_text(row["mechanism"], row["params"])}
    if isinstance(row.get("overlapped"), dict):  # `shingle bench`: medians of other timed things are columns
        case = quartiles(row["overlapped"])
        row = without(row, "overlapped", "overlapped_us", "sequential", "compute")
    if isinstance(row.get("points"), list):  # bench_partitions
        row = {"problem": row["problem"], "points": [partition(point, row) for point in row["points"]]}
    for key, value in row.items():
        if key in DROPPED:
            continue
        if key == "problem":
            case.update(problem_columns(value))
        elif key == "group_waves":
            groups = {"groups": ",".join(map(str, value))}
            case["plan"] = plan_text("signal", groups) if value else "sequential"
        elif key == "names":
            case[key] = "/".join(value)
        elif key == "params":
            case[key] = plan_text("", value or {})  # null: not planned
        elif isinstance(value, dict):
            for name, item in {key: value, **value}.items():
                if isinstance(item, dict) and (time := quartiles(item)):
                    timed[name.removesuffix("_us")] = time
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            inner += [part for item in value for part in flat(item)]
        else:
            case[RENAMED.get(key, key)] = value
    case.update(quartiles(row) or {})
    if "time" in timed:
        case.update(timed.pop("time"))
    if timed:
        return [{**case, "timed": name, **time} for name, time in timed.items()]
    return [{**case, **part} for part in inner] or [case]


def columns_of(rows):
    """Returns columns: those of the case, then times, then other figures, without all-empty ones."""
    found = list(dict.fromkeys(key for row in rows for key, value in row.items() if value not in (None, "")))
    figures = [key for key in found if any(isinstance(row.get(key), (float, bool)) for row in rows)]
    case = [key for key in found if key not in figures]
    ordered = [*FIRST, *case, *TIMES, *figures]
    return [key for key in dict.fromkeys(ordered) if key in found]


def machine_text(machine):
    """Returns a record's machine as one line."""
    if not isinstance(machine, dict):
        return str(machine)
    words = [machine["gpu"]] if "gpu" in machine else []
    if cuda := machine.get("cuda"):
        gpus, memory = cuda["devices"], cuda["devices"][0]["memory_bytes"] / 2**30
        words.append(f"{len(gpus)} x {gpus[0]['name']} ({gpus[0]['sms']} SMs, {memory:.0f} GiB)")
        words.append(f"CUDA {cuda['runtime']}, NCCL {cuda['nccl']}")
    if "cpu" in machine:
        words.append(f"{machine['cores']} cores of {machine['cpu']}")
    if machine.get("onednn") and "cuda" not in machine:
        words.append(f"oneDNN {machine['onednn']}")
    return ", ".join(words)


def self_test():
    """Tests each form of row."""
    time = {"median_us": 2.0, "samples_us": [4.0, 1.0, 2.0], "spread": 1.5}
    got = {"median_us": 2.0, "p25_us": 2.0, "p75_us": 4.0}
    assert quartiles(time) == got, quartiles(time)
    assert flat({"k": 8, "hooks": {"tile": time}, "idle": time}) == [
        {"k": 8, "timed": "tile", **got},
        {"k": 8, "timed": "idle", **got},
    ]
    points = [{"names": ["searched"], "group_waves": [1, 2], "time": time}]
    shape = {"problem": "gemm+allreduce 1x2x3 bf16, 4 ranks", "best_us": 2.0, "search_us": 5.0, "points": points}
    problem = {"op": "gemm+allreduce", "m": "1", "n": "2", "k": "3", "dtype": "bf16", "world": "4"}
    point = {"plan": "signal:groups=1,2", "names": "searched/fastest", "search_us": 5.0}
    assert flat(shape) == [{**problem, **point, **got}], flat(shape)
    params = {"helpers": "none", "one-shot": True, "tile": "8x16"}
    bench = {"op": "a", "mechanism": "fused", "params": params, "overlapped_us": 2.0, "compute_us": 1.0}
    assert flat({**bench, "overlapped": time, "sequential": time, "compute": None}) == [
        {**got, "op": "a", "compute_us": 1.0, "plan": "fused:helpers=none:one-shot:tile=8x16"}
    ]
