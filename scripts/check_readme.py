#!/usr/bin/env python3
"""Checks claims that only the README makes: check_readme.py

Its program equals examples/first.cpp. The output of `shingle plan` and the measured figure precede any table. The page
is short. scripts/check_docs.py checks links and commands. scripts/readme_figure.py checks the figures. The test
Cli.RunsTheCommandsOfTheReadme runs the commands. Exits 1 with a line for each broken claim.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = "examples/first.cpp"
MOST_LINES = 110


def problems(readme, program):
    if re.findall(r"```cpp\n(.*?)```", readme, re.DOTALL) != [program]:
        yield f"its program is not {EXAMPLE} without the comment at the head"
    if (lines := readme.count("\n")) > MOST_LINES:
        yield f"it has {lines} lines; expected at most {MOST_LINES}"
    table = re.search(r"^\|", readme, re.MULTILINE)
    before = readme[: table.start()] if table else readme
    for wanted in ("$ shingle plan ", "<!-- figures: suite -->"):
        if wanted not in before:
            yield f"'{wanted.strip()}' does not stand before the first table"


def main():
    program = re.sub(r"\A(//[^\n]*\n)+", "", (ROOT / EXAMPLE).read_text())
    found = list(problems((ROOT / "README.md").read_text(), program))
    for problem in found:
        print(f"README.md: {problem}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
