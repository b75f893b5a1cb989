#!/usr/bin/env python3
"""Checks the claims of README, CONTRIBUTING and docs/: check_docs.py PROGRAM | check_docs.py --self-test PROGRAM

PROGRAM is the built `shingle`. It checks on all pages:
  links      each relative link leads to a file, each anchor to a heading
  commands   each `shingle` command of a code block parses: its flags exist, combine, and accept their values
  outputs    each ```console block shows the output of its `$ shingle …` commands; … in it matches any text
  flags      each `shingle …` in running text names an existing subcommand and its flags
  targets    each `make …` is a target of the Makefile
  paths      each repository path in backticks exists; a header may omit leading folders
Prints page:line and the problem. Exits 1 if there is one. --self-test proves that each check can fail.
"""

import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = "src include tools scripts bench tests models machines examples plugins python docs cmake"
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADER = re.compile(r"[\w-]+(/[\w-]+)*/[\w.-]+\.(hpp|h|cpp|cu|cuh|py|sh)")


def pages(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]


def split(text):
    """Returns (prose, blocks): lines outside code by number, and [(language, number of the first line, lines)]."""
    prose, blocks, fence, indented = {}, [], None, False
    for number, line in enumerate(text.split("\n"), 1):
        if fence is not None:
            if line.strip().startswith("```"):
                fence = None
            else:
                blocks[fence][2].append(line)
        elif match := re.match(r"\s*```(\w*)", line):
            blocks.append((match[1], number + 1, []))
            fence, indented = len(blocks) - 1, False
        elif line.startswith("    ") and (indented or not prose.get(number - 1, "").strip()):
            if not indented:
                blocks.append(("", number, []))
            blocks[-1][2].append(line[4:])
            indented = True
        else:
            prose[number] = line
            indented = False
    return prose, blocks


def anchors(text):
    """Returns the anchors of a page's headings. GitHub and MkDocs make the same ones."""
    prose, _ = split(text)
    found, counts = set(), {}
    for line in prose.values():
        if match := re.match(r"#{1,6} (.*)", line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")
            counts[slug] = counts.get(slug, -1) + 1
            found.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
    return found


def wrong_links(root, page, text):
    prose, _ = split(text)
    for number, line in prose.items():
        for groups in LINK.findall(re.sub(r"`[^`]*`", "``", line)):
            target = groups[0] or groups[1]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve()
            if path and not file.exists():
                yield number, f"links to {target}: there is no {path}"
            elif anchor and anchor not in anchors(file.read_text() if path else text):
                yield number, f"links to {target}: no heading there has the anchor {anchor}"


# ---- commands


@functools.cache
def subcommands(program):
    return set(re.findall(r"^  ([a-z]+)  ", ask(program, ["--help"])[1].split("Subcommands:")[1], re.MULTILINE))


def ask(program, arguments, **options):
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
    return ran.returncode, ran.stdout, ran.stderr


@functools.cache
def flags_of(program, subcommand):
    """Returns the set of flags and positionals in a subcommand's --help."""
    flags = set()
    for line in ask(program, [subcommand, "--help"])[1].split("\n"):
        if match := re.match(r"  (-[-\w,]+|[a-z]+ (?=[A-Z.]+ ))", line):
            flags.update(match[1].strip().split(","))
    return flags


def command_lines(lines):
    """Returns (offset, command) for the lines of a code block, with continued lines joined."""
    joined, start = "", 0
    for offset, line in enumerate(lines):
        start = offset if not joined else start
        joined += line.rstrip("\\") if line.endswith("\\") else line
        if not line.endswith("\\"):
            yield start, joined
            joined = ""


def calls(command):
    """Returns the argument lists of `shingle` in a shell line. A leading program such as mpirun is skipped."""
    command = re.sub(r"^\$ ", "", command)
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";|&()<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words = list(lexer)
    except ValueError:
        return
    if re.search(r'"\$\(shingle', command):
        yield from calls(re.search(r'"\$\((.*)\)"', command)[1])
    at = 0
    while at < len(words):
        if not re.fullmatch(r"(.*/)?shingle", words[at]):
            at += 1
            continue
        arguments = []
        while (at := at + 1) < len(words) and not re.fullmatch(r"[;|&()<>]+", words[at]):
            arguments.append(words[at])
        yield arguments


def wrong_flags(program, arguments):
    """Yields problems of a call: an unknown subcommand or flag."""
    if not arguments or arguments[0] in {"--help", "--version", "-h"}:
        return
    if arguments[0] not in subcommands(program):
        yield f"shingle has no subcommand {arguments[0]}"
        return
    for flag in (word.split("=")[0] for word in arguments[1:] if re.match(r"-{1,2}[a-z]", word)):
        if flag not in flags_of(program, arguments[0]):
            yield f"shingle {arguments[0]} has no flag {flag}"


def wrong_commands(program, text):
    _, blocks = split(text)
    for language, first, lines in blocks:
        if language not in {"", "console", "sh", "bash"}:
            continue
        for offset, command in command_lines(lines):
            if language == "console" and not command.startswith("$ "):
                continue
            for arguments in calls(command):
                found = list(wrong_flags(program, arguments))
                abridged = any("…" in word or word.startswith("$") for word in arguments)
                if not found and arguments and not abridged:
                    # With --help a command only parses its values. The build may lack CUDA.
                    words = shlex.split(shlex.join(arguments).replace(" --backend cuda", ""))
                    code, _, error = ask(program, [*words, "--help"], cwd=ROOT)
                    found = [error.strip()] if code else []
                yield from ((first + offset, problem) for problem in found)


def wrong_outputs(program, text):
    _, blocks = split(text)
    for language, first, lines in blocks:
        if language != "console":
            continue
        command, shown, offset = None, [], 0
        for number, line in enumerate([*lines, "$ "]):
            if not line.startswith("$ "):
                shown.append(line.rstrip())
                continue
            if command:
                with tempfile.TemporaryDirectory() as empty:  # an empty cache, without this machine's tuning results
                    _, printed, error = ask(
                        program, next(calls(command)), cwd=ROOT,
                        env={**os.environ, "XDG_CACHE_HOME": empty, "COLUMNS": "80"},
                    )  # fmt: skip
                shown_text = "[^\n]*".join(re.escape(part) for part in "\n".join(shown).rstrip("\n").split("…"))
                printed_text = "\n".join(line.rstrip() for line in (printed + error).split("\n")).rstrip("\n")
                if not re.fullmatch(shown_text, printed_text):
                    yield first + offset, f"`{command}` prints something else:\n{printed}{error}"
            command, shown, offset = line[2:], [], number


def wrong_prose(program, root, text):
    prose, _ = split(text)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    whole = "\n".join(prose.get(number, "") for number in range(1, max(prose, default=0) + 1))
    for match in re.finditer(r"`([^`\n]+)`", whole):
        number, code = whole.count("\n", 0, match.start()) + 1, match[1]
        if re.match(r"shingle [a-z]", code):
            # Checks only flags: values may be placeholders.
            words = [word for word in code.split()[1:] if not re.match(r"[^-\w]", word)]
            yield from ((number, problem) for problem in wrong_flags(program, words))
        if make := re.match(r"make ([a-z-]+)", code):
            if make[1] not in targets:
                yield number, f"the Makefile has no target {make[1]}"
        word = code.split()[0] if code.split() else ""
        word = re.sub(r":\d+$", "", word)
        if re.match(f"({FOLDERS.replace(' ', '|')})/", word) and not re.search(r"[…{]", word):
            pattern = re.sub(r"<[^>]*>|[A-Z_]{3,}$", "*", word).rstrip("/")
            # A record may be named without its suffix, as under tables of figures.
            endings = ["", ".*"] if word.startswith("bench/results/") else [""]
            if not any(True for ending in endings for _ in root.glob(pattern + ending)):
                yield number, f"there is no {word}"
        elif HEADER.fullmatch(word) and not word.startswith("shingle/") and not any(
            name.endswith("/" + word) for name in tracked(root)
        ):
            yield number, f"no file of the repository is called {word}"
        elif word.startswith("shingle/") and HEADER.fullmatch(word):
            if not (root / "include" / word).exists() and not (root / "tools" / word).exists():
                yield number, f"there is no public header {word}"


@functools.cache
def tracked(root):
    skipped = {"build", ".git"}
    return [
        "/" + str(file.relative_to(root))
        for top in root.iterdir() if top.name not in skipped and top.is_dir()
        for file in top.rglob("*")
    ]  # fmt: skip


def wrong_targets(text):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    _, blocks = split(text)
    for _, first, lines in blocks:
        for offset, line in enumerate(lines):
            if (make := re.match(r"(?:\$ )?make ([a-z-]+)", line)) and make[1] not in targets:
                yield first + offset, f"the Makefile has no target {make[1]}"


def problems(program, root, page, text):
    """Returns [(line, problem)] for a page."""
    return sorted([
        *wrong_links(root, page, text), *wrong_commands(program, text), *wrong_outputs(program, text),
        *wrong_prose(program, root, text), *wrong_targets(text),
    ])  # fmt: skip


# ---- self-test

# (page, part of the expected problem); None: no problem.
CASES = [
    ("[a](gone.md)", "there is no gone.md"),
    ("[a](#nowhere)", "no heading"),
    ("# Some `code` here\n\n[a](#some-code-here)", None),
    ("    shingle runs --op gemm", "no subcommand runs"),
    ("    shingle run --nose 3", "no flag --nose"),
    ("    shingle plan --op gemm --m much", "not a size"),
    ("    mpirun -n 2 shingle run --op gemm --m 64 --n 64 --k 64 && shingle verify --nose", "no flag --nose"),
    ("    shingle run --op gemm \\\n      --nose", "no flag --nose"),
    ('    eval "$(shingle tune --nose tuned.json)"', "no flag --nose"),
    ("    for c in 64K; do shingle profile --chunk $c --nose; done", "no flag --nose"),
    ("    shingle run --op gemm+allreduce --m 64 --n 64 --k 64 | less", None),
    ("```console\n$ shingle --version\nnothing\n```", "prints something else"),
    ("```console\n$ shingle --version\nshingle …\n```", None),
    ("See `shingle compare A B --nose 3`.", "no flag --nose"),
    ("See `shingle compare A B --threshold P`.", None),
    ("    make nose", "no target nose"),
    ("Say `make nose`.", "no target nose"),
    ("In `src/nose.cpp`.", "there is no src/nose.cpp"),
    ("In `bench/results/<machine>/suite.csv` and `src/verify/memory/check_*.cpp`.", None),
    ("See `bench/results/h200x2/suite`.", None),
    ("See `bench/results/h200x2/nose`.", "there is no bench/results/h200x2/nose"),
    ("In `plan/nose.hpp`.", "no file"),
    ("In `plan/steps.hpp` and `shingle/plan/plan.hpp`.", None),
    ("In `shingle/plan/steps.hpp`.", "no public header"),
]


def self_test(program):
    wrong = []
    page = ROOT / "docs" / "self-test.md"
    for text, expected in CASES:
        found = [problem for _, problem in problems(program, ROOT, page, text)]
        if expected is None and found or expected is not None and not any(expected in one for one in found):
            wrong.append(f"of {text!r} it says {found}, expected {expected!r}")
    return wrong


def main():
    arguments = sys.argv[1:]
    testing = arguments[:1] == ["--self-test"]
    if len(arguments) != 1 + testing or arguments[-1].startswith("-"):
        sys.exit(__doc__)
    program = str(pathlib.Path(arguments[-1]).resolve())
    found = self_test(program) if testing else [
        f"{page.relative_to(ROOT)}:{number}: {problem}"
        for page in pages(ROOT) for number, problem in problems(program, ROOT, page, page.read_text())
    ]  # fmt: skip
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
