#!/usr/bin/env python3
"""Keeps measurements as compact CSV: records.py add RECORD.json --out FILE.csv | check | --self-test

RECORD.json is the output of `shingle bench --out`, or of a program in bench/ with `--json`. FILE.csv has one row per
case, with median and quartiles instead of samples. Lines above its header begin with #. They hold command, commit,
date, machine, and every value that all rows share. `add` refuses a record of uncommitted sources. `check` reads every
file in bench/results, and exits 1 with a line for each wrong file.
"""

import argparse
import csv
import datetime
import io
import json
import pathlib
import sys
import tempfile

import record_rows
from record_rows import DIGITS, DROPPED, TIMES, columns_of, flat, machine_text, text_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
MOST_BYTES = 600_000

# Keys of a record beside its rows: those of every CSV, and those that the command or the rows already give.
NOTES = ["command", "commit", "date", "machine"]
NOT_NOTED = {"version", "backend", "world", "epochs", "elapsed_s", "planning_s", "machine", "gpu"}


class Record:
    """A CSV: `notes` (the lines above the header, by key), `columns`, and `rows` (dictionaries of text)."""

    def __init__(self, notes, columns, rows):
        self.notes, self.columns, self.rows = notes, columns, rows


def read(path):
    """Reads the record of a CSV. A name without a suffix is in bench/results. Rows include the notes."""
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


def convert(record, date, table="rows"):
    """Converts a JSON record to a Record. `table` names the list that becomes its rows."""
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


def committed(commit):
    return "dirty" not in commit and commit not in ("None", "unknown")


def wrong_with(results, most=MOST_BYTES):
    """Yields the problems of the records in a folder."""
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
        if not committed(record.notes.get("commit", "")):
            yield f"{name}: measured on sources that were not committed ({record.notes['commit']}); measure a commit"
        if not record.rows or None in record.rows[0]:
            yield f"{name}: has no rows, or rows that are longer than its header"
        elif dropped := DROPPED & set(record.columns):
            yield f"{name}: has columns that records leave out: {', '.join(sorted(dropped))}"
    if total > most:
        yield f"{results.name}: {total} bytes; at most {most}"


def self_test():
    """Tests a record's text, and that `check` refuses exactly the wrong files."""
    record_rows.self_test()
    time = {"median_us": 2.0, "samples_us": [4.0, 1.0, 2.0]}
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
    add.add_argument("--out", type=pathlib.Path, required=True, help="such as bench/results/h200x2/suite.csv")
    add.add_argument("--table", default="rows", help="the list of the record that becomes the rows (rows)")
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    add.add_argument("--date", default=today, help="of the run (today)")
    commands.add_parser("check", help="look at every file in bench/results")
    arguments = parser.parse_args()
    if arguments.action == "add":
        record = json.loads(arguments.record.read_text())
        if not committed(str(record.get("commit"))):
            sys.exit(f"{arguments.record}: measured on sources that were not committed; commit, then measure again")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(csv_text(convert(record, arguments.date, arguments.table)))
        return None
    problems = list(wrong_with(RESULTS))
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
