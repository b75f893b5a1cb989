#!/usr/bin/env python3
"""Writes the tables of figures of README.md and docs from bench/results: tables.py [--check] | tables.py --self-test

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; a function of scripts/table_definitions makes it.
--check changes nothing. It exits 1 with a line for each page that differs from the records, each table that no page
contains, and each table of figures outside such marks.
"""

import pathlib
import re
import sys
import tempfile
import textwrap

import records
from table_definitions import TABLES

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^(<!-- table: (\S+) -->\n).*?^(<!-- end -->)$", re.DOTALL | re.MULTILINE)


def markdown(head, rows):
    line = lambda cells: "".join(f"| {cell} " if cell else "| " for cell in map(str, cells)) + "|"
    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def rendered(name):
    """Returns a table, followed by the source of its figures."""
    function, sources = TABLES[name]
    loaded = [records.read(source) for source in sources]
    head, rows = function(*loaded)
    origins = [
        f"`bench/results/{source}.csv` ({record.notes['commit']}, {record.notes['date']})"
        for source, record in zip(sources, loaded)
    ]
    origin = textwrap.fill(f"From {', '.join(origins)}.", width=120, break_on_hyphens=False)
    return f"{markdown(head, rows)}\n\n{origin}\n"


def pages(root):
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def written(text, render):
    """Returns a page with its tables rendered again."""
    return BLOCK.sub(lambda match: f"{match[1]}{render(match[2])}{match[3]}", text)


def bare_tables(text):
    """Yields the first lines of unmarked tables whose cells are mostly figures."""
    text = BLOCK.sub("", text)
    for match in re.finditer(r"^\|.*\n\|(?:[ :]*-+[ :]*\|)+\n((?:\|.*\n)+)", text, re.MULTILINE):
        cells = [cell.strip() for line in match[1].splitlines() for cell in line.strip("|").split("|")[1:]]
        figures = [cell for cell in cells if re.match(r"[−+-]?\d+([.,]\d+)?\b", cell)]
        if 2 * len(figures) > len(cells):
            yield match[0].splitlines()[0]


def problems(root, names, render):
    found = set()
    for page in pages(root):
        text, name = page.read_text(), page.relative_to(root)
        marked = [match[2] for match in BLOCK.finditer(text)]
        found.update(marked)
        for unknown in sorted(set(marked) - set(names)):
            yield f"{name}: the table {unknown} has no definition in scripts/table_definitions"
        if set(marked) <= set(names) and written(text, render) != text:
            yield f"{name}: its tables are not what the records give; run scripts/tables.py"
        if len(re.findall("^<!-- table: ", text, re.MULTILINE)) != len(marked):
            yield f"{name}: a table has no line <!-- end -->"
        for head in bare_tables(text):
            yield f"{name}: figures that no record gives: {head}"
    for name in sorted(set(names) - found):
        yield f"scripts/table_definitions: no page has the table {name}"


def self_test():
    """Tests that the check refuses exactly the wrong pages."""
    flags = "| flag | meaning |\n|---|---|\n| x | 1 |\n| y | a word |\n"
    good = f"# A\n\n<!-- table: a -->\n| a | b |\n<!-- end -->\n\n{flags}"
    for page, message in [
        (good, ""),
        (good.replace("| b |", "| c |"), "not what the records give"),
        (good.replace("table: a", "table: b"), "no definition"),
        (good.replace("table: a", "tabel: a"), "no page has"),
        (good.replace("<!-- end -->", ""), "no line <!-- end -->"),
        (good.replace("a word", "2.5 µs"), "no record gives"),
    ]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/deep").mkdir(parents=True)
            (root / "README.md").write_text("")
            (root / "docs/deep/a.md").write_text(page)
            found = list(problems(root, ["a"], lambda name: f"| {name} | b |\n"))
            assert bool(found) == bool(message) and message in "".join(found), (message, found)


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if arguments == ["--check"]:
        found = list(problems(ROOT, TABLES, rendered))
        print(*found, sep="\n", end="\n" if found else "")
        return 1 if found else 0
    if arguments:
        sys.exit(__doc__)
    for page in pages(ROOT):
        text = page.read_text()
        if (changed := written(text, rendered)) != text:
            page.write_text(changed)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
