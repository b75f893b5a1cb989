"""The command-line program: where it is, and how functions run it.

The program is the one in this package. A development build has none here; SHINGLE_PROGRAM names it:
SHINGLE_PROGRAM=build/host/bin/shingle.
"""

import json
import os
import pathlib
import subprocess
import sys
import warnings
from typing import Any, Mapping, NoReturn, Sequence

from . import errors

#: The value of a flag. True is the bare flag; None and False leave it out; a sequence is joined by commas.
Flag = bool | int | float | str | os.PathLike | Sequence[int | str] | None

#: The exceptions of the program's failures, by the `status` that `--json-errors` prints.
STATUS_ERRORS = {
    "invalid argument": errors.InvalidArgument,
    "unsupported": errors.Unsupported,
    "timeout": errors.Timeout,
    "I/O error": errors.IoError,
    "CUDA error": errors.CudaError,
    "NCCL error": errors.NcclError,
    "MPI error": errors.MpiError,
    "out of memory": errors.OutOfMemory,
}

#: Variables by which launchers tell a process its rank. The program runs without them: every rank gets an answer.
LAUNCHER_RANKS = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}

#: Flags of what the program prints and draws, which functions set themselves.
OUTPUT_FLAGS = {
    "critical_path", "format", "html", "lowered", "nccl", "nccl_env", "out", "rank", "steps", "svg", "timeline",
    "trace",
}  # fmt: skip

NOTE = "shingle: note: "  #: begins a line for the user that is no failure


def path() -> pathlib.Path:
    """Returns the program's file. Raises errors.IoError if there is none."""
    bundled = pathlib.Path(__file__).parent / "bin" / "shingle"
    if bundled.exists():
        return bundled
    named = os.environ.get("SHINGLE_PROGRAM", "")
    if not named:
        raise errors.IoError(f"{bundled} is missing: reinstall the package, or name a build in SHINGLE_PROGRAM")
    if not pathlib.Path(named).exists():
        raise errors.IoError(f"SHINGLE_PROGRAM = {named!r}: there is no such file; name a build's bin/shingle")
    return pathlib.Path(named)


def arguments(flags: Mapping[str, Flag]) -> list[str]:
    """Returns a user's keyword arguments as flags. Raises InvalidArgument for flags of the program's output."""
    for name in flags:
        if name in OUTPUT_FLAGS:
            raise errors.InvalidArgument(f"{name} is not taken here: leave it out, and use the methods of the result")
    return words(flags)


def words(flags: Mapping[str, Flag]) -> list[str]:
    """Returns flags as words: {"m": "8K", "groups": [1, 2]} becomes ["--m=8K", "--groups=1,2"]."""
    found = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            found.append(flag)
        elif isinstance(value, (list, tuple)):
            found.append(f"{flag}={','.join(map(str, value))}")
        else:
            found.append(f"{flag}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return found


def run(command: str, *rest: str, negative: bool = False) -> str:
    """Runs `shingle COMMAND REST…` and returns what it prints. Its notes become warnings.

    negative: exit code 1 with output is an answer too: a proof that failed, or rows without a plan.
    Raises the exception of errors that the failure's status names.
    """
    done = _call("--json-errors", command, *rest)
    for line in done.stderr.splitlines():
        if line.startswith(NOTE):
            warnings.warn(line.removeprefix(NOTE), stacklevel=3)
    if done.returncode == 0 or (done.returncode == 1 and done.stdout and negative):
        return done.stdout
    _raise(done.returncode, done.stderr)


def _call(*arguments: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_RANKS}
    return subprocess.run(
        [path(), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
    )


def _raise(code: int, stderr: str) -> NoReturn:
    if code < 0:
        raise errors.InternalError(f"the program ended by signal {-code}: {stderr.strip()}")
    last = stderr.rstrip().rpartition("\n")[2]
    if last.startswith("{"):
        failure = json.loads(last)
        raise STATUS_ERRORS.get(failure["status"], errors.Error)(failure["message"])
    # Without a failure the program says, in a line each, which plans there are not.
    raise errors.Unsupported(stderr.strip().replace("shingle: ", ""))


def version() -> str:
    """Returns the program's version, such as "0.1.0"."""
    done = _call("--version")
    if done.returncode != 0:
        _raise(done.returncode, done.stderr)
    return done.stdout.split()[1]


def info(**flags: Flag) -> dict[str, Any]:
    """Describes this machine and this build: processor, GPUs, libraries, backends, mechanisms, machines and models.

    Takes the flags of `shingle info`, such as world=2. Raises InvalidArgument for a wrong flag.
    """
    return json.loads(run("info", "--format=json", *arguments(flags)))


def main() -> NoReturn:
    """The command `shingle`: becomes the program."""
    try:
        program = path()
    except errors.IoError as error:
        sys.exit(f"shingle: {error}")
    os.execv(program, ["shingle", *sys.argv[1:]])
