#!/usr/bin/env python3
"""Checks what the README promises: check_readme.py

Its program is examples/first.cpp, the files that it links to exist, and so do the targets of make that it names.
That its commands run, the test Cli.RunsTheCommandsOfTheReadme shows. Exits 1 with a line for each that is wrong.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLE = "examples/first.cpp"


def wrong_with(page, text):
    """What is wrong with the links and commands of a page."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not re.match(r"https?:", target) and not (page.parent / target).exists():
            yield f"{page.relative_to(ROOT)}: links to {target}, which does not exist"
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE):
        if target not in targets:
            yield f"{page.relative_to(ROOT)}: the Makefile has no target {target}"


def main():
    readme = (ROOT / "README.md").read_text()
    problems = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        problems += wrong_with(page, page.read_text())
    program = re.sub(r"\A(//[^\n]*\n)+", "", (ROOT / EXAMPLE).read_text())
    if re.findall(r"```cpp\n(.*?)```", readme, re.DOTALL) != [program]:
        problems.append(f"README.md: its program is not {EXAMPLE} without the comment at the head")
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
