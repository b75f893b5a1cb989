#!/usr/bin/env python3
"""Checks that includes keep to the layers: check_layers.py [root] | check_layers.py --self-test

Prints file:line and the broken rule for each violation; exits 1 if there is one.
"""

import pathlib
import re
import sys
import tempfile

# Folder: level. A folder may include itself and folders of lower levels, but no sibling.
LEVELS = {
    "base": 0, "grid": 0,
    "net": 1, "cotune": 1, "plan": 1, "machine": 1,
    "verify": 2, "lower": 2, "planner": 2, "backend": 2,
    "sim": 3, "host": 3, "cuda": 3,
    "tune": 4, "workload": 4, "check": 4,
    "api": 5, "report": 5,
    "shared": 6, "tools": 6, "plugins": 6, "python": 6,
}  # fmt: skip
# Headers directly in include/shingle, with the folder they belong to. All others, such as shingle.hpp, belong to api.
LOOSE_HEADERS = {"version.hpp": "base"}

# Vendor headers. Their types stay out of L0-L2 and of all public headers except those of the owning backends.
VENDOR = re.compile(
    r"^(cuda(?!/.*\.hpp)|cublas|cudnn|cutlass|cute|nccl|nvtx|nvml|mpi\b|oneapi/|dnnl|cblas|openblas"
    r"|torch/|ATen/|c10/|jax/|xla/|nanobind|pybind11|Python\.h|dlpack)"
)
BACKENDS = {"host", "cuda"}

# Code below the planners reads a plan's steps, and never its mechanism or params.
BLIND = {"lower", "backend", "sim", "host", "cuda"}
MECHANISM = re.compile(r"\bplan(_|\(\))?(\.|->)(mechanism|params)\b")

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def folder_of(parts):
    """Returns the layer of a path below src/ or include/shingle/, or None."""
    if len(parts) == 1:
        return LOOSE_HEADERS.get(parts[0], "api")
    return parts[0] if parts[0] in LEVELS else None


def sources(root):
    """Yields (file, folder, is a public header) for all files of the layers."""
    for top, public in (("include/shingle", True), ("src", False)):
        for file in sorted((root / top).rglob("*.*")):
            folder = folder_of(file.relative_to(root / top).parts)
            if folder and file.suffix in {".hpp", ".cpp", ".h", ".cuh", ".cu"}:
                yield file, folder, public
    for top in ("tools", "plugins", "python"):
        for file in sorted((root / top).rglob("*.*pp")):
            yield file, top, False


def included_folder(root, file, name):
    """Returns the layer that an include names, or None for a system or library header."""
    parts = pathlib.PurePosixPath(name).parts
    if parts[0] == "shingle":
        return folder_of(parts[1:])
    if parts[0] in LEVELS and len(parts) > 1:
        return parts[0]
    beside = (file.parent / name).resolve()
    for top in (root / "include/shingle", root / "src"):
        if beside.is_relative_to(top):
            return folder_of(beside.relative_to(top).parts)
    return None


def broken_rule(root, file, folder, public, name):
    """Returns the rule that this include breaks, or None."""
    if VENDOR.match(name):
        if LEVELS[folder] <= 2:
            return f"{name}: no CUDA, MPI, oneDNN or framework header in L0-L2"
        if public and folder not in BACKENDS:
            return f"{name}: no CUDA, MPI, oneDNN or framework header in a public header of {folder}"
        return None
    target = included_folder(root, file, name)
    if target is None or target == folder:
        return None
    if folder == "grid":
        return f"{name}: grid includes nothing else of the project"
    if LEVELS[target] == LEVELS[folder]:
        return f"{name}: {folder} and {target} are siblings (L{LEVELS[folder]})"
    if LEVELS[target] > LEVELS[folder]:
        return f"{name}: {folder} (L{LEVELS[folder]}) is below {target} (L{LEVELS[target]})"
    return None


def violations(root):
    root = root.resolve()
    for file, folder, public in sources(root):
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            rule = match and broken_rule(root, file, folder, public, match[1])
            if folder in BLIND and MECHANISM.search(line):
                rule = f"{folder} asks for the mechanism of a plan, or its params: what it needs is a field of the plan"
            if rule:
                yield f"{file.relative_to(root)}:{number}: {rule}"


def self_test():
    """Checks each include alone: exactly the wrong ones must be refused."""
    cases = [
        ("include/shingle/plan/a.hpp", "shingle/base/error.hpp", None),
        ("include/shingle/plan/a.hpp", "shingle/planner/a.hpp", "is below"),
        ("include/shingle/base/a.hpp", "shingle/shingle.hpp", "is below"),
        ("include/shingle/shingle.hpp", "shingle/api/world.hpp", None),
        ("include/shingle/base/a.hpp", "shingle/version.hpp", None),
        ("include/shingle/grid/a.hpp", "shingle/version.hpp", "nothing else"),
        ("src/grid/a.cpp", "shingle/grid/a.hpp", None),
        ("src/planner/a.cpp", "shingle/backend/a.hpp", "siblings"),
        ("src/planner/a.cpp", "../backend/a.hpp", "siblings"),
        ("src/planner/a.cpp", "planner/detail.hpp", None),
        ("src/planner/a.cpp", "vector", None),
        ("src/host/deep/a.cpp", "cuda/stream.hpp", "siblings"),
        ("src/host/a.cpp", "mpi.h", None),
        ("include/shingle/base/a.hpp", "cuda/std/atomic", "L0-L2"),
        ("src/backend/a.cpp", "mpi.h", "L0-L2"),
        ("include/shingle/api/a.hpp", "cuda_runtime.h", "public header"),
        ("include/shingle/cuda/a.hpp", "cuda_runtime.h", None),
        ("tools/shingle/main.cpp", "shingle/shingle.hpp", None),
        ("src/sim/a.cpp", "if (plan_.mechanism == Mechanism::ring) {", "mechanism"),
        ("src/cuda/runtime/a.cpp", "return plan.params.engines + 1;", "mechanism"),
        ("src/planner/a.cpp", "if (plan_.mechanism == Mechanism::ring) {", None),
    ]
    for path, include, expected in cases:
        with tempfile.TemporaryDirectory() as tree:
            file = pathlib.Path(tree, path)
            file.parent.mkdir(parents=True)
            file.write_text(f"#pragma once\n#include <{include}>\n" if " " not in include else f"#pragma once\n{include}\n")
            found = list(violations(pathlib.Path(tree)))
            if expected is None:
                assert not found, found
            else:
                assert len(found) == 1 and found[0].startswith(f"{path}:2: ") and expected in found[0], (path, found)


def main(arguments):
    if arguments == ["--self-test"]:
        self_test()
        return 0
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).parents[1]
    found = list(violations(root))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
