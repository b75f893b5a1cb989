#!/usr/bin/env python3
"""Keeps measurements as compact CSV: records.py add RECORD.json --out FILE.csv | check | --self-test

RECORD.json is what `shingle bench --out`, or a program in bench/ with `--json`, writes. FILE.csv has a row a case, with
median and quartiles instead of samples. Lines above its header begin with #: command, commit, date, machine, and every
value that all rows share. `add` refuses a record of sources that were not committed. `check` looks at every file in
bench/results and exits 1 with a line for each that is wrong.
"""

import argparse
import csv
import datetime
import io
import json
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
MOST_BYTES = 300_000

# Measured on sources that were not committed, before `add` refused that: to be measured again. Nothing may be added.
MEASURE_AGAIN = {
    "h200x2/alltoall", "h200x2/flashoverlap",
    "h200x4/copy_engine", "h200x4/flashoverlap", "h200x4/layers_tp8", "h200x4/partitions", "h200x4/suite",
    "h200x4/sums",
}  # fmt: skip

# What a row of JSON has and a row of CSV does not: samples, what other columns or the command give, how it was checked.
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
DIGITS = {"error": 2, "predicted_us": 5}  # of others: six of a time, else four

# Of a record, beside its rows: what is in every CSV, and what the command says or the rows give.
NOTES = ["command", "commit", "date", "machine"]
NOT_NOTED = {"version", "backend", "world", "epochs", "elapsed_s", "planning_s", "machine", "gpu"}


class Record:
    """A CSV: `notes`, the lines above the header, by their keys; `columns`; `rows`, dictionaries of text."""

    def __init__(self, notes, columns, rows):
        self.notes, self.columns, self.rows = notes, columns, rows


def read(path):
    """The record of a CSV; a name without a suffix is one of bench/results. Its rows have the notes, too."""
    path = pathlib.Path(path)
    file = path if path.suffix else RESULTS / f"{path}.csv"
    lines = file.read_text().splitlines(keepends=True)
    body = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    notes = {}
    for line in lines[:body]:
        key, _, value = line[1:].strip().partition(": ")
        notes[key] = f"{notes[key]}\n{value}" if key in notes else value
    reader = csv.DictReader(lines[body:])
    return Record(notes, reader.fieldnames or [], [{**notes, **row} for row in reader])


def text_of(value, digits=6):
    """A cell; six significant digits are more than a clock has."""
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
    """A mechanism with its params, as `shingle bench --mechanism` takes it: signal:tile=128x256:groups=1,2."""
    words = [mechanism] if mechanism else []
    order = params.get("order", {})
    flat = {**{key: value for key, value in params.items() if key != "order"}, **order}
    for key, value in flat.items():
        if key == "tile_rows":
            words.append(f"tile={value}x{flat['tile_cols']}")
        elif key == "cluster_m":
            words.append(f"cluster={value}x{flat.get('cluster_n', 1)}")
        elif key == "without_helpers":
            words.append("helpers=none")
        elif key == "raster":
            words.append(f"raster={value[-1]}")
        elif key == "group_waves":
            words.append("groups=" + ",".join(map(str, value)))
        elif key not in ("tile_cols", "cluster_n") and value is not False:
            words.append(key.replace("_", "-") + ("" if value is True else f"={value}"))
    return ":".join(words)


def problem_columns(text):
    """The columns of a problem such as "gemm+allreduce 1024x8192x3584 bf16, B transposed, 4 ranks"."""
    match = re.fullmatch(r"(\S+) (\d+)x(\d+)x(\d+) (\w+), (?:B transposed, )?(\d+) ranks", text)
    return dict(zip(("op", "m", "n", "k", "dtype", "world"), match.groups())) if match else {"problem": text}


def quartiles(value):
    """Median and quartiles of an object with times, quartiles as bench/report.hpp has them; None if it has no times."""
    us = {key.removesuffix("_us"): item for key, item in value.items()}
    if "median" not in us:
        return None
    samples = sorted(us.get("samples", []))
    at = lambda fraction: samples[int(fraction * (len(samples) - 1) + 0.5)] if samples else None
    return dict(zip(TIMES, (us["median"], us.get("p25", at(0.25)), us.get("p75", at(0.75)))))


def without(row, *keys):
    return {key: value for key, value in row.items() if key not in keys}


def partition(point, shape):
    """A point of a shape of bench_partitions: the fastest is named so; the searched one has the time of the search."""
    names, us = point["names"], shape["search_us"] if "searched" in point["names"] else None
    fastest = point["group_waves"] and point["time"]["median_us"] == shape["best_us"]
    return {**point, "names": [*names, "fastest"] if fastest else names, "search_us": us}


def flat(row):
    """The rows of CSV that an object of JSON is: one for each thing that was timed, or for each object of a list."""
    case, timed, inner = {}, {}, []
    if row.get("mechanism") and isinstance(row.get("params"), dict):
        row = {**without(row, "mechanism", "params"), "plan": plan_text(row["mechanism"], row["params"])}
    if isinstance(row.get("overlapped"), dict):  # `shingle bench`: what else was timed has its median in a column
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
            case["plan"] = plan_text("signal", {key: value}) if value else "sequential"
        elif key == "names":
            case[key] = "/".join(value)
        elif key == "params":
            case[key] = plan_text("", value)
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
    """Those of the case, then times, then other figures; without those that are empty in every row."""
    found = list(dict.fromkeys(key for row in rows for key, value in row.items() if value not in (None, "")))
    figures = [key for key in found if any(isinstance(row.get(key), (float, bool)) for row in rows)]
    case = [key for key in found if key not in figures]
    ordered = [*FIRST, *case, *TIMES, *figures]
    return [key for key in dict.fromkeys(ordered) if key in found]


def machine_text(machine):
    """One line of what a record says about its machine."""
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


def convert(record, date, table="rows"):
    """The Record of one of JSON; `table` is the list that becomes its rows."""
    notes = {"command": record["command"], "commit": record.get("commit", ""), "date": date}
    notes["machine"] = machine_text(record.get("machine", record.get("gpu", "")))
    for key, value in record.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            value = "; ".join(value)
        if key not in (*notes, *NOT_NOTED) and not isinstance(value, (dict, list)) and value not in (None, ""):
            notes[key] = text_of(value)
    if isinstance(notes["command"], list):
        notes["command"] = "\n".join(notes["command"])
    rows = [part for row in record[table] for part in flat(row)]
    columns = columns_of(rows)
    digits = {key: DIGITS.get(key, 6 if key.endswith("us") else 4) for key in columns}
    rows = [{key: text_of(row.get(key), digits[key]) for key in columns} for row in rows]
    shared = [key for key in columns if len(rows) > 1 and key not in TIMES and len({row[key] for row in rows}) == 1]
    notes.update({key: rows[0][key] for key in shared})
    return Record(notes, [key for key in columns if key not in shared], rows)


def csv_text(record):
    out = io.StringIO()
    for key, value in record.notes.items():
        for line in value.splitlines():
            out.write(f"# {key}: {line}\n")
    writer = csv.DictWriter(out, record.columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(record.rows)
    return out.getvalue()


def wrong_with(results, measure_again=frozenset(), most=MOST_BYTES):
    """What is wrong with the records in a folder."""
    total = 0
    for file in sorted(path for path in results.rglob("*") if path.is_file()):
        name = file.relative_to(results)
        total += file.stat().st_size
        if file.suffix != ".csv":
            yield f"{name}: not a CSV; records.py add makes one of a JSON"
            continue
        record = read(file)
        for key in NOTES:
            if not record.notes.get(key):
                yield f"{name}: has no line '# {key}: …'"
        if "dirty" in record.notes.get("commit", "") and str(name.with_suffix("")) not in measure_again:
            yield f"{name}: measured on sources that were not committed ({record.notes['commit']}); measure a commit"
        if not record.rows or None in record.rows[0]:
            yield f"{name}: has no rows, or rows that are longer than its header"
        elif dropped := DROPPED & set(record.columns):
            yield f"{name}: has columns that records leave out: {', '.join(sorted(dropped))}"
    for name in sorted(measure_again):
        if not (results / f"{name}.csv").exists():
            yield f"{name}.csv: is in MEASURE_AGAIN, but not in {results.name}"
    if total > most:
        yield f"{results.name}: {total} bytes; at most {most}"


def self_test():
    """Conversion of each form of row, and that the check refuses exactly the wrong files."""
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
    params = {"tile_rows": 8, "tile_cols": 16, "without_helpers": True}
    bench = {"op": "a", "mechanism": "fused", "params": params, "overlapped_us": 2.0, "compute_us": 1.0}
    assert flat({**bench, "overlapped": time, "sequential": time, "compute": None}) == [
        {**got, "op": "a", "compute_us": 1.0, "plan": "fused:tile=8x16:helpers=none"}
    ]
    rows = [{"op": "x,y", **time, "ok": True, "none": None}]
    text = csv_text(convert({"command": "a", "commit": "1", "machine": {"gpu": "G"}, "rows": rows}, "2026-01-02"))
    notes = "# command: a\n# commit: 1\n# date: 2026-01-02\n# machine: G\n"
    assert text == notes + 'op,median_us,p25_us,p75_us,ok\n"x,y",2,2,4,yes\n', text
    for change, message in [
        ({}, ""),
        ({"# commit: 1": "# commit: 1-dirty"}, "not committed"),
        ({"# machine: G\n": ""}, "machine"),
        ({"yes": "yes,1"}, "longer"),
        ({",ok": ",samples_us"}, "samples_us"),
        ({"yes": "y" * 500}, "at most"),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            changed = text
            for old, new in change.items():
                changed = changed.replace(old, new)
            pathlib.Path(folder, "a.csv").write_text(changed)
            found = list(wrong_with(pathlib.Path(folder), most=500))
            assert len(found) == bool(message) and message in "".join(found), (message, found)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True)
    add = commands.add_parser("add", help="make a CSV of a record of JSON")
    add.add_argument("record", type=pathlib.Path)
    add.add_argument("--out", type=pathlib.Path, required=True, help="such as bench/results/h200x4/suite.csv")
    add.add_argument("--table", default="rows", help="the list of the record that becomes the rows (rows)")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    add.add_argument("--date", default=today, help="of the run (today)")
    commands.add_parser("check", help="look at every file in bench/results")
    arguments = parser.parse_args()
    if arguments.action == "add":
        record = json.loads(arguments.record.read_text())
        if "dirty" in str(record.get("commit")):
            sys.exit(f"{arguments.record}: measured on sources that were not committed; commit, then measure again")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(csv_text(convert(record, arguments.date, arguments.table)))
        return None
    problems = list(wrong_with(RESULTS, MEASURE_AGAIN))
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
