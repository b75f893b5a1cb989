"""Registers tables, and reads and formats the figures of records."""

import math

TABLES = {}


def table(name, *sources):
    """Registers a function that makes (head, rows) of the records named."""

    def register(function):
        TABLES[name] = (function, sources)
        return function

    return register


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


def shapes_of(record):
    """Yields, for each op and shape of a record, the row without overlap, and the others."""
    shapes = {}
    for row in record.rows:
        shapes.setdefault((row["op"], row["m"], row["n"], row["k"]), []).append(row)
    for rows in shapes.values():
        overlapped = [row for row in rows if row["names"] != "sequential"]
        yield next(row for row in rows if row["names"] == "sequential"), overlapped


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
