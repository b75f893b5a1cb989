"""Machine profiles: what the ranks, links and collectives of a machine take."""

import contextlib
import dataclasses
import functools
import json
import os
import tempfile
from typing import Any, Iterator

from . import _files, _program, errors


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine's profile (docs/reference/machines.md has its keys and units)."""

    json: str  #: the text that `shingle profile` prints

    @classmethod
    def load(cls, file: str | os.PathLike) -> "Machine":
        """Reads a profile. Raises IoError if the file cannot be read, InvalidArgument if it holds no JSON."""
        text = _files.read(file, "what Machine.save() writes")
        try:
            found = json.loads(text)
        except ValueError as error:
            raise errors.InvalidArgument(f"{os.fspath(file)}: {error}; expected what Machine.save() writes") from None
        if not isinstance(found, dict) or not {"name", "workers"} <= found.keys():
            raise errors.InvalidArgument(f"{os.fspath(file)} is no profile; expected what Machine.save() writes")
        return cls(text)

    def save(self, file: str | os.PathLike) -> None:
        """Writes the profile. `--machine FILE` takes it."""
        _files.write(file, self.json)

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """The profile's keys."""
        return json.loads(self.json)

    @property
    def name(self) -> str:
        return self.data["name"]

    def __repr__(self) -> str:
        return f"<Machine {self.name}: {self.data['workers']} workers a rank>"


def profile(**flags: _program.Flag) -> Machine:
    """Measures this machine: some ten seconds on threads, one or two minutes on GPUs.

    flags: those of `shingle profile`, such as world=2, backend="cuda", budget=60 (seconds), keep=True.
    Raises InvalidArgument for a wrong flag, Error if measurements spread too much.
    """
    return Machine(_program.run("profile", *_program.arguments(flags)))


@contextlib.contextmanager
def machine_flag(machine: str | os.PathLike | Machine | None) -> Iterator[list[str]]:
    """Yields the flag --machine for a name, a file or a profile; nothing for None."""
    if machine is None:
        yield []
    elif isinstance(machine, Machine):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "machine.json")
            machine.save(file)
            yield [f"--machine={file}"]
    else:
        yield [f"--machine={os.fspath(machine)}"]
