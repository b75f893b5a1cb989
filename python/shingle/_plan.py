"""Plans: for every rank its lanes, for every lane its steps."""

import dataclasses
import functools
import json
import os
import tempfile
from typing import Any

from . import _files, _program, errors
from ._machine import Machine, machine_flag


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan as data. Jupyter shows its timeline in unit costs."""

    json: str  #: the text that `shingle plan --format json` prints

    @classmethod
    def load(cls, file: str | os.PathLike) -> "Plan":
        """Reads a plan. Raises InvalidArgument if the file holds something else, IoError if it cannot be read."""
        text = _files.read(file, "what Plan.save() writes")
        try:
            is_plan = json.loads(text).get("format") == "shingle-plan"
        except (ValueError, AttributeError):
            is_plan = False
        if not is_plan:
            raise errors.InvalidArgument(f"{os.fspath(file)} is not a plan; expected what Plan.save() writes")
        return cls(text)

    def save(self, file: str | os.PathLike) -> None:
        """Writes the plan. `shingle verify`, `run` and `simulate` take the file."""
        _files.write(file, self.json)

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """The plan's fields: problem, mechanism, params, buffers, counters, ranks and others."""
        return json.loads(self.json)

    @property
    def mechanism(self) -> str:
        return self.data["mechanism"]

    @property
    def problem(self) -> dict[str, Any]:
        """The operator and its sizes: op, world, m, n, k, dtype and others."""
        return self.data["problem"]

    def text(self, *, rank: int | None = None, lowered: bool = False) -> str:
        """Returns the plan for a reader: all steps of a rank and how other ranks differ.

        rank: rank to print; None: rank 0. lowered: print the launches on streams that a GPU makes of the plan.
        Raises InvalidArgument if there is no such rank.
        """
        return self.shown(rank=rank, lowered=lowered).rstrip()

    def svg(self) -> str:
        """Returns a drawing of all ranks' lanes, in unit costs: a tile or a transfer takes one unit."""
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "plan.svg")
            self.shown(svg=file)
            return _files.read(file, "a drawing")

    def shown(self, **flags: _program.Flag) -> str:
        """Returns what `shingle plan FILE` prints with these flags."""
        with tempfile.TemporaryDirectory() as folder:
            return _program.run("plan", self.saved_in(folder), *_program.words(flags))

    def saved_in(self, folder: str) -> str:
        """Writes the plan into a folder and returns the file, for the program."""
        file = os.path.join(folder, "plan.json")
        self.save(file)
        return file

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        sizes = " ".join(f"{key}={value}" for key, value in self.problem.items() if isinstance(value, (int, str)))
        return f"<Plan {self.mechanism}: {sizes}>"

    def _repr_svg_(self) -> str:
        return self.svg()


def plan(*, machine: str | Machine | None = None, **flags: _program.Flag) -> Plan:
    """Plans one operator.

    machine: machine to plan for; None: this one. flags: those of `shingle plan`, such as op="gemm+allreduce",
    m="8K", n=8192, k=3584 (rows and columns of one rank's GEMM), world=8, dtype="bf16", mechanism="fused".
    Raises InvalidArgument for a wrong flag and if the flags name several plans, Unsupported if there is no plan.
    """
    found = plans(machine=machine, **flags)
    if len(found) > 1:
        raise errors.InvalidArgument(f"the flags name {len(found)} plans, but plan() makes one: use plans()")
    return found[0]


def plans(*, machine: str | Machine | None = None, **flags: _program.Flag) -> list[Plan]:
    """Plans the operators of a layer, or one operator with several mechanisms.

    Takes the arguments of plan(), and model="llama-3-8b", tokens=4096, layer_ops=True, or mechanism="all".
    Leaves out mechanisms that do not serve an operator. Raises Unsupported if none does.
    """
    with machine_flag(machine) as target:
        steps = [*target, "--steps"] if target else []
        text = _program.run("plan", "--format=json", *steps, *_program.arguments(flags))
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        _, end = decoder.raw_decode(text)
        found.append(Plan(text[:end] + "\n"))
        text = text[end:]
    return found
