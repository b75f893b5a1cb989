#!/usr/bin/env python3
"""Checks what libshingle.so shows and needs: check_abi.py LIBRARY [MODULE…] | check_abi.py --self-test LIBRARY

  exported   exactly the functions of src/shared/exports.map, with its version, and each is declared in shingle/shingle.h
  soname     libshingle.so.1
  needed     no MPI, NCCL, cuBLASLt, cuDNN or CUDA driver
  modules    libshingle-mpi.so exports its one table; libshingle_torch.so its functions, and needs no PyTorch or CUDA
Prints each problem. Exits 1 if there is one. --self-test proves that each check can fail.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = {
    "libshingle-mpi.so": {"shingle_mpi_module"},
    "libshingle_torch.so": {"shingle_torch_calls_create", "shingle_torch_calls_destroy", "shingle_torch_register"},
}  # fmt: skip
FORBIDDEN = "mpi open-rte open-pal pmix nccl cublas cudnn cuda nvrtc nvidia"


def ask(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library):
    """Returns the exported symbols, with their versions."""
    lines = ask("nm", "--dynamic", "--defined-only", library).splitlines()
    return {fields[2] for fields in map(str.split, lines) if fields[1] != "A"}


def dynamic(library, tag):
    """Returns the values of a tag of the dynamic section."""
    return re.findall(rf"\({tag}\).*\[(.*)\]", ask("readelf", "--dynamic", "--wide", library))


def listed(exports):
    """Returns the symbols of a version script, with their versions."""
    return {
        f"{symbol}@@{version}"
        for version, block in re.findall(r"(SHINGLE_\d+) \{\s*global:(.*?)\}", exports, re.DOTALL)
        for symbol in re.findall(r"(\w+);", block)
    }


def problems(found, needed, soname, exports, header):
    wanted = listed(exports)
    yield from (f"exports {symbol}, which exports.map lacks" for symbol in sorted(found - wanted))
    yield from (f"does not export {symbol}" for symbol in sorted(wanted - found))
    declared = set(re.findall(r"^SHINGLE_API [^;]*?\b(shingle_\w+)\(", header, re.MULTILINE))
    names = {symbol.split("@")[0] for symbol in wanted}
    yield from (f"shingle.h lacks {name}, which exports.map has" for name in sorted(names - declared))
    yield from (f"exports.map lacks {name}, which shingle.h declares" for name in sorted(declared - names))
    for prefix in FORBIDDEN.split():
        yield from (f"needs {library}" for library in needed if library.startswith(f"lib{prefix}"))
    if soname != ["libshingle.so.1"]:
        yield f"has the soname {soname}; expected libshingle.so.1"


def module_problems(name, shown, needed):
    expected = next((symbols for file, symbols in MODULES.items() if name.startswith(file)), set())
    if shown != expected:
        yield f"{name} exports {sorted(shown)}; expected {sorted(expected)}"
    if name.startswith("libshingle_torch"):
        yield from (f"{name} needs {library}" for library in needed if re.match("lib(torch|c10|cu|nv)", library))


def facts(library):
    return {
        "found": exported(library), "needed": dynamic(library, "NEEDED"), "soname": dynamic(library, "SONAME"),
        "exports": (ROOT / "src/shared/exports.map").read_text(),
        "header": (ROOT / "include/shingle/shingle.h").read_text(),
    }  # fmt: skip


def self_test(right):
    """Changes one fact at a time."""
    right = {**right, "needed": []}
    cases = [
        ({"found": right["found"] | {"_ZN7shingle5ErrorD1Ev@@SHINGLE_1"}}, "exports _ZN7shingle"),
        ({"found": right["found"] - {"shingle_version@@SHINGLE_1"}}, "does not export shingle_version"),
        ({"needed": ["libmpi.so.40"]}, "needs libmpi.so.40"),
        ({"needed": ["libnccl.so.2"]}, "needs libnccl.so.2"),
        ({"needed": ["libcuda.so.1"]}, "needs libcuda.so.1"),
        ({"soname": ["libshingle.so.0"]}, "soname"),
        ({"header": right["header"] + "SHINGLE_API void shingle_nose(void);"}, "exports.map lacks shingle_nose"),
        ({"header": right["header"].replace("shingle_commit(", "nose(")}, "shingle.h lacks shingle_commit"),
    ]
    for change, expected in cases:
        found = list(problems(**{**right, **change}))
        if len(found) != 1 or expected not in found[0]:
            yield f"with {expected!r} to find, it finds {found}"
    torch = "libshingle_torch.so"
    for shown, needed, expected in ((set(), [], "exports []"), (MODULES[torch], ["libtorch_cpu.so"], "needs libtorch")):
        found = list(module_problems(torch, shown, needed))
        if len(found) != 1 or expected not in found[0]:
            yield f"with {expected!r} to find, it finds {found}"


def main():
    libraries = [argument for argument in sys.argv[1:] if argument != "--self-test"]
    testing = "--self-test" in sys.argv
    if not libraries or testing and len(libraries) > 1 or libraries[0].startswith("-"):
        sys.exit(__doc__)
    right = facts(libraries[0])
    found = list(self_test(right) if testing else problems(**right))
    for module in libraries[1:]:
        found += module_problems(pathlib.Path(module).name, exported(module), dynamic(module, "NEEDED"))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
