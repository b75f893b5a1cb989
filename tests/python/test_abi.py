"""The ctypes mirror against the header: a C program prints what the compiler sees."""

import pathlib
import re
import subprocess

import pytest
from shingle import _abi

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "include"
HEADER = (INCLUDE / "shingle/shingle.h").read_text()


def header_fields(struct):
    """Names of the fields of a struct of the header, in order."""
    body = re.search(rf"typedef struct {struct} \{{(.*?)\n\}} {struct};", HEADER, re.DOTALL).group(1)
    body = re.sub(r"//.*", "", body)
    callbacks = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)
    return [
        re.search(r"(\w+)\s*$", declaration).group(1) for declaration in callbacks.split(";") if declaration.strip()
    ]


def mirror(struct):
    """Lines "struct field offset size" of a ctypes struct, and its size."""
    for name, _ in struct._fields_:
        field = getattr(struct, name)
        yield f"{name} {field.offset} {field.size}"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the C compiler says: {struct: (lines, size)} and {enumerator: value}."""
    folder = tmp_path_factory.mktemp("abi")
    lines = ["#include <shingle/shingle.h>", "#include <stdio.h>", "int main(void) {"]
    for struct in _abi.STRUCTS:
        lines += [f'printf("{struct} size %zu\\n", sizeof({struct}));']
        lines += [
            f'printf("{struct} {field} %zu %zu\\n", offsetof({struct}, {field}), sizeof((({struct}*)0)->{field}));'
            for field in header_fields(struct)
        ]
    lines += [f'printf("{name} = %d\\n", {name});' for name in re.findall(r"^  (SHINGLE_\w+) = \d+,", HEADER, re.M)]
    (folder / "print.c").write_text("\n".join(lines + ["return 0; }"]))
    subprocess.run(["cc", "-std=c11", f"-I{INCLUDE}", "print.c", "-o", "print"], cwd=folder, check=True)
    return subprocess.run([folder / "print"], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("name", _abi.STRUCTS)
def test_struct_has_the_layout_of_the_header(name, compiled):
    expected = [line.removeprefix(name + " ") for line in compiled if line.startswith(name + " ")]
    assert expected[1:] == list(mirror(_abi.STRUCTS[name]))
    import ctypes

    assert expected[0] == f"size {ctypes.sizeof(_abi.STRUCTS[name])}"


def test_every_struct_of_the_header_is_mirrored():
    assert set(re.findall(r"^\} (shingle_\w+);", HEADER, re.M)) - set(_abi.STRUCTS) == {
        "shingle_status", "shingle_log_level", "shingle_dtype", "shingle_row_order", "shingle_role",
    }  # fmt: skip


def test_every_function_of_the_header_is_mirrored():
    declared = re.findall(r"^SHINGLE_API [^;]*?\b(shingle_\w+)\(([^;]*?)\) SHINGLE_NOEXCEPT;", HEADER, re.M | re.DOTALL)
    parameters = {name: 0 if given == "void" else given.count(",") + 1 for name, given in declared}
    assert parameters == {name: len(types) - 1 for name, types in _abi.FUNCTIONS.items()}


def test_enumerators_have_the_values_of_the_header(compiled):
    values = dict(line.split(" = ") for line in compiled if " = " in line)
    mirrored = {
        f"SHINGLE_{name.upper()}": number for table in (_abi.DTYPES, _abi.ROLES) for name, number in table.items()
    }
    for name, number in mirrored.items():
        assert int(values.pop(name)) == number
    statuses = {int(v) for n, v in values.items() if n not in ("SHINGLE_ROWS_CONTIGUOUS", "SHINGLE_ROWS_BLOCK_CYCLIC")
                and not n.startswith("SHINGLE_LOG_")}  # fmt: skip
    assert statuses == {0, *_abi.STATUS_ERRORS}


def test_a_wrong_mirror_is_found(compiled):
    swapped = type(
        "Swapped", (_abi.Struct,), {"_fields_": [_abi.Matrix._fields_[0], *reversed(_abi.Matrix._fields_[1:])]}
    )
    expected = [line.removeprefix("shingle_matrix ") for line in compiled if line.startswith("shingle_matrix ")]
    assert expected[1:] != list(mirror(swapped))
