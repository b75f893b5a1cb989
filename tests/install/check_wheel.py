#!/usr/bin/env python3
"""Checks a wheel of Shingle: check_wheel.py WHEEL [--most-mb N]

  tag     py3-none, for a manylinux platform
  files   the package's sources, the program, the libraries, models, machines and bundled libraries; nothing else
  needed  the program and the libraries need glibc, libstdc++, libgcc and what is bundled; no MPI, NCCL or CUDA library
  size    at most N MB
Prints each problem. Exits 1 if there is one.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = re.compile(r"(ld-linux-[\w-]+|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s))\.so\.\d")


def expected_files():
    """Returns the files of the folder shingle/ in a wheel."""
    sources = {str(file.relative_to(ROOT / "python")) for file in (ROOT / "python/shingle").rglob("*.py")}
    shipped = {
        f"shingle/{folder}/{file.name}" for folder in ("models", "machines") for file in (ROOT / folder).iterdir()
    }
    libraries = {"shingle/libshingle.so", "shingle/libshingle_torch.so"}
    others = {"shingle/py.typed", "shingle/bin/shingle", "shingle/bench/suite.json"} | libraries
    return sources | shipped | others


def needed(file):
    """Returns the shared libraries that a file needs; none if it is not an ELF file."""
    if file.read_bytes()[:4] != b"\x7fELF":
        return []
    text = subprocess.run(["readelf", "-dW", file], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def problems(wheel, most_mb):
    if not re.fullmatch(r"shingle-[\d.]+-py3-none-(manylinux_\d+_\d+_\w+\.?)+\.whl", wheel.name):
        yield f"{wheel.name}: expected shingle-VERSION-py3-none-manylinux_….whl"
    if wheel.stat().st_size > most_mb * 1e6:
        yield f"{wheel.stat().st_size / 1e6:.0f} MB; expected at most {most_mb}"
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
            names = {name for name in archive.namelist() if not name.endswith("/")}
        bundled = {name for name in names if name.startswith("shingle.libs/")}
        own = {name for name in names - bundled if not re.match(r"shingle-[\d.]+\.dist-info/", name)}
        yield from (f"lacks {name}" for name in sorted(expected_files() - own))
        yield from (f"holds {name}" for name in sorted(own - expected_files()))
        at_hand = {pathlib.PurePosixPath(name).name for name in bundled}
        for name in sorted(names):
            for library in needed(pathlib.Path(folder, name)):
                if library not in at_hand and not SYSTEM.fullmatch(library):
                    yield f"{name} needs {library}, which is neither bundled nor a part of every Linux"
        for library in sorted(at_hand):
            if re.match(r"lib(mpi|open-|pmix|nccl|cu|nv)", library):
                yield f"bundles {library}; it must be opened at run time"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--most-mb", type=float, default=60)
    options = parser.parse_args()
    found = list(problems(options.wheel, options.most_mb))
    for problem in found:
        print(f"{options.wheel.name}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
