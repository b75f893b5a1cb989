"""How functions find and run the program."""

import pathlib
import re
import subprocess
import sys

import pytest

import shingle
from shingle import _program

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"
PAGE = ROOT / "docs" / "start" / "python.md"


def test_keyword_arguments_become_flags():
    flags = {"m": "8K", "transpose_b": True, "causal": False, "groups": [1, 2], "seed": None, "link": "1GB/s,2us"}
    assert _program.arguments(flags) == ["--m=8K", "--transpose-b", "--groups=1,2", "--link=1GB/s,2us"]
    with pytest.raises(shingle.InvalidArgument, match="out is not taken here"):
        shingle.plan(op="gemm", m=8, n=8, k=8, out="plan.json")


def test_version_and_info():
    info = shingle.info(world=2)
    assert shingle.__version__ == info["version"]
    assert info["machine"]["ranks"] == 2 and "host" in info["backends"] and "fused" in info["mechanisms"]
    with pytest.raises(AttributeError, match="nose"):
        shingle.nose


def test_every_rank_of_a_launcher_gets_an_answer(monkeypatch):
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert shingle.plan(op="gemm+allreduce", m=8, n=8, k=8, world=2).problem["m"] == 8


def test_a_missing_program_is_named(monkeypatch, tmp_path):
    if (pathlib.Path(_program.__file__).parent / "bin").exists():
        pytest.skip("the package holds the program")
    monkeypatch.setenv("SHINGLE_PROGRAM", str(tmp_path / "none"))
    with pytest.raises(shingle.IoError, match="none'.*SHINGLE_PROGRAM|SHINGLE_PROGRAM.*none'"):
        shingle.info()
    monkeypatch.delenv("SHINGLE_PROGRAM")
    with pytest.raises(shingle.IoError, match="name a build in SHINGLE_PROGRAM"):
        shingle.info()


def replace_program(monkeypatch, tmp_path, script):
    program = tmp_path / "shingle"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(_program, "path", lambda: program)


def test_an_ended_program_is_a_defect(monkeypatch, tmp_path):
    replace_program(monkeypatch, tmp_path, "kill -SEGV $$")
    with pytest.raises(shingle.InternalError, match="signal 11"):
        shingle.info()


def test_a_program_that_does_not_start_is_named(monkeypatch, tmp_path):
    error = "shingle: error while loading shared libraries: libfmt.so.9"
    replace_program(monkeypatch, tmp_path, f"echo '{error}' >&2\nexit 127")
    with pytest.raises(shingle.Unsupported, match="libfmt.so.9"):
        shingle.__version__


def test_the_command_becomes_the_program():
    command = [sys.executable, "-c", "from shingle._program import main; main()", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("shingle ")


def test_the_page_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    *core, plots = blocks
    subprocess.run([sys.executable, "-c", "".join(core)], check=True, cwd=tmp_path, timeout=120)
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, "-c", plots], check=True, cwd=tmp_path, timeout=120)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("0[16]_*.py")), ids=lambda file: file.stem)
def test_examples_run(example, tmp_path):
    subprocess.run([sys.executable, example], check=True, cwd=tmp_path, timeout=120)
