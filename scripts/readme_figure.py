#!/usr/bin/env python3
"""Draws docs/speedup.svg, and writes its summary into pages: readme_figure.py [--check]

Both come from a record of `shingle bench`. The summary stands between <!-- figures: suite --> and <!-- end -->.
--check changes nothing, and exits 1 if the figure or a summary differs from the record.
"""

import math
import pathlib
import re
import statistics
import sys
import textwrap

import records

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = records.RESULTS / "h200x2/suite.csv"
FIGURE = ROOT / "docs/speedup.svg"
CONTENDER = "auto"
PAGES = [ROOT / "README.md", ROOT / "docs/index.md"]
SUMMARY = re.compile(r"(<!-- figures: suite -->\n).*?(<!-- end -->)", re.DOTALL)

# Middle tones that are legible on white and on black.
COLOURS = ["#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#e15759", "#b6992d"]
LEFT, RIGHT, TOP, BOTTOM = 60, 690, 40, 320
WIDTH, HEIGHT = 960, 370


def measured(record):
    """Returns the contender's rows that ran. Exits if one failed its check."""
    rows = [row for row in record.rows if row["contender"] == CONTENDER and row["median_us"]]
    if any(row["verified"] != "yes" for row in rows):
        sys.exit(f"{RECORD} has results that failed their check; measure again")
    return rows


def speedup_of(row):
    return float(row["sequential_us"]) / float(row["median_us"])


def series_of(record):
    """Returns {"attn_out gemm+reducescatter": [(M, speed-up), ...]}."""
    series = {}
    for row in measured(record):
        name = f"{row['layer'].split('.')[-1]} {row['op']}"
        series.setdefault(name, []).append((int(row["m"]), speedup_of(row)))
    return {name: sorted(points) for name, points in series.items()}


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def line(x1, y1, x2, y2):
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#8c8c8c" stroke-opacity="0.35"/>'
    )


def title_of(record):
    row = record.rows[0]
    device = re.match(r"\d+ x (.+?) \(", row["machine"])[1]
    return f"{row['layer'].split('.')[0]}, tensor parallelism over {row['world']} {device}, {row['dtype']}"


def draw(record):
    series = series_of(record)
    sizes = sorted({m for points in series.values() for m, _ in points})
    best = max(speedup for points in series.values() for _, speedup in points)
    low, high = 0.9, math.ceil(best * 10) / 10
    x = lambda m: LEFT + (RIGHT - LEFT) * math.log(m / sizes[0]) / math.log(sizes[-1] / sizes[0])
    y = lambda speedup: BOTTOM - (BOTTOM - TOP) * (speedup - low) / (high - low)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="14" fill="#808080">',
        text(LEFT, 20, f"{title_of(record)}: speed-up over GEMM, then collective"),
    ]
    for m in sizes:
        parts += [line(x(m), TOP, x(m), BOTTOM), text(x(m), BOTTOM + 20, m if m < 1024 else f"{m // 1024}K", "middle")]
    for tenth in range(round(low * 10), round(high * 10) + 1):
        parts += [line(LEFT, y(tenth / 10), RIGHT, y(tenth / 10)), text(LEFT - 8, y(tenth / 10) + 5, tenth / 10, "end")]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 42, "M: tokens of the batch", "middle"))
    ordered = sorted(series.items(), key=lambda item: -item[1][-1][1])
    for i, (name, points) in enumerate(ordered):
        colour, at = COLOURS[i % len(COLOURS)], TOP + 30 + 26 * i
        path = " ".join(f"{x(m):.1f},{y(speedup):.1f}" for m, speedup in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x(m):.1f}" cy="{y(s):.1f}" r="3" fill="{colour}"/>' for m, s in points]
        parts.append(f'<rect x="{RIGHT + 20}" y="{at - 10}" width="14" height="8" fill="{colour}"/>')
        parts.append(text(RIGHT + 40, at, name))
    return "\n".join([*parts, "</svg>", ""])


def summary(record):
    """Returns a summary of the record in one paragraph."""
    rows = measured(record)
    sizes = [int(row["m"]) for row in rows]
    large = [speedup_of(row) for row in rows if int(row["m"]) >= 2048]
    kept = sum(row["plan"] == "sequential" for row in rows)
    slower = sum(speedup_of(row) < 1 for row in rows)
    faster = len(rows) - kept - slower
    outcome = f"{kept} keep that baseline, {faster} are faster and {slower or 'none'} {'are' if slower > 1 else 'is'} slower"
    if faster == len(rows):
        outcome = "all are faster"
    model, devices = re.match(r"(.*), tensor parallelism over (.*), ", title_of(record)).groups()
    model = re.sub(r"-(\d+)b$", r" \1B", model).replace("llama", "Llama")
    return textwrap.fill(
        f"**On {devices}, the tensor-parallel GEMMs of {model} and their collectives run up to "
        f"{max(map(speedup_of, rows)):.2f} times as fast as cuBLASLt followed by NCCL.** The geometric mean from "
        f"2,048 to {max(sizes):,} tokens is {statistics.geometric_mean(large):.2f}. Of {len(rows)} measured shapes, "
        f"from {min(sizes)} to {max(sizes):,} tokens, {outcome}. Every result was verified.",
        width=120,
    )


def written():
    """Returns {file: its content according to the record}."""
    record = records.read(RECORD)
    files = {FIGURE: draw(record)}
    for page in PAGES:
        text = summary(record)
        files[page], count = SUMMARY.subn(lambda match: f"{match[1]}{text}\n{match[2]}", page.read_text())
        if count != 1:
            sys.exit(f"{page} has {count} paragraphs between <!-- figures: suite --> and <!-- end -->; expected one")
    return files


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    for file, content in written().items():
        if not sys.argv[1:]:
            file.write_text(content)
        elif file.read_text() != content:
            sys.exit(f"{file} is not what {RECORD} gives: run scripts/readme_figure.py")


if __name__ == "__main__":
    main()
