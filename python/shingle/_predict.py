"""Predicted times of operators on a machine, by simulation."""

import dataclasses
import html
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from . import _files, _program, errors
from ._machine import Machine, machine_flag
from ._plan import Plan
from ._proof import plan_file


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What an operator is predicted to take with a mechanism. Times are in microseconds."""

    op: str
    m: int  #: rows of one rank's GEMM
    n: int  #: columns of one rank's GEMM
    k: int  #: inner dimension of one rank's GEMM
    world: int
    dtype: str
    machine: str
    mechanism: str
    layer_op: str | None = None  #: name of the operator in its layer, of a model
    inner: int | None = None  #: columns of the activated first product, of two chained ones
    params: dict[str, Any] | None = None
    sequential_us: float | None = None  #: the GEMM followed by the collective
    overlapped_us: float | None = None
    speedup: float | None = None  #: sequential_us / overlapped_us
    overlap_efficiency: float | None = None  #: share of the exposed communication that is hidden; 1: all of it
    compute_us: float | None = None  #: the computation alone
    wire_us: float | None = None  #: all bytes at the link's rate
    exposed_us: float | None = None  #: time in which no worker computes
    ect_us: float | None = None  #: overlapped_us - compute_us, the effective time of communication
    roofline_fraction: float | None = None  #: max(compute_us, wire_us) / overlapped_us
    tflops: float | None = None  #: of one rank
    mfu: float | None = None  #: tflops as a share of the machine's best
    choice: dict[str, Any] | None = None  #: why tune chose the mechanism, and what it considered
    reason: str | None = None  #: why there is no plan; the times are then None


class Predictions(Sequence[Prediction]):
    """A sequence of predictions, which Jupyter shows as a table."""

    def __init__(self, rows: Sequence[Prediction]):
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> "Predictions": ...
    def __getitem__(self, index):
        return Predictions(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...]) -> str:
            return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"

        head, *lines = map(row, self._cells())
        return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"

    def _cells(self) -> list[tuple[str, ...]]:
        lines: list[tuple[str, ...]] = [("operator", "M×N×K", "mechanism", "sequential us", "predicted us", "speedup")]
        for row in self._rows:
            name = f"{row.layer_op} {row.op}" if row.layer_op else row.op
            times = ("", "", row.reason or "")
            if row.speedup is not None:
                times = (f"{row.sequential_us:.1f}", f"{row.overlapped_us:.1f}", f"{row.speedup:.2f}x")
            lines.append((name, f"{row.m}×{row.n}×{row.k}", row.mechanism, *times))
        return lines


class Simulation(Predictions):
    """Predictions of simulated plans, which can also be drawn. Jupyter shows the timeline below the table."""

    def __init__(self, rows: Sequence[Prediction], output: Callable[[str], str]):
        super().__init__(rows)
        self._output = output

    def svg(self) -> str:
        """Returns a drawing of the simulated runs, one below the other."""
        return self._output("svg")

    def trace(self) -> dict[str, Any]:
        """Returns a Chrome trace of the simulated runs, for ui.perfetto.dev: its `traceEvents` are spans of steps."""
        return json.loads(self._output("trace"))

    def report(self, file: str | os.PathLike) -> None:
        """Writes a page with the table and figures: one HTML file, readable offline."""
        _files.write(file, self._output("html"))

    def _repr_html_(self) -> str:
        return super()._repr_html_() + (self.svg() if len(self) <= 8 else "")


def simulate(
    plan: Plan | str | os.PathLike | None = None,
    *,
    machine: str | os.PathLike | Machine | None = None,
    sweep: Mapping[str, Sequence[int | str]] | None = None,
    **flags: _program.Flag,
) -> Simulation:
    """Predicts how long plans take on a machine. Nothing is run, and no GPU is needed.

    plan: a plan or the file of one; without it, flags name operators as for shingle.plans().
    machine: a profile or its name, file or nodes, such as "h200x8", "own.json" or "h200x8 * 2, 8x400Gb/s"; None: this
    machine, which is measured once. sweep: sizes to combine, such as {"m": ["1K", "2K"], "k": [1024, 4096]}.
    flags: those of `shingle simulate`, such as mechanism="all", slowdown=[1, 1.5].
    A row without a plan has a reason. Raises InvalidArgument for a wrong flag.
    """
    words = _sweeps(sweep or {}) + _program.arguments(flags)

    def run(*output: str) -> str:
        with machine_flag(machine) as target:
            if plan is None:
                return _program.run("simulate", *words, *target, *output, negative=True)
            with plan_file(plan) as file:
                return _program.run("simulate", file, *words, *target, *output, negative=True)

    def output(kind: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, kind)
            run(f"--{kind}={file}")
            return _files.read(file, "a drawing")

    return Simulation(_rows(run("--format=json")), output)


def _sweeps(sweep: Mapping[str, Sequence[int | str]]) -> list[str]:
    if not isinstance(sweep, Mapping):
        raise errors.InvalidArgument(f'sweep = {sweep!r}: expected sizes by name, such as {{"m": ["1K", "2K"]}}')
    values = {size: [of] if isinstance(of, (int, str)) else of for size, of in sweep.items()}
    return [f"--sweep={size}={','.join(map(str, of))}" for size, of in values.items()]


def tune(*, machine: str | os.PathLike | Machine | None = None, **flags: _program.Flag) -> Predictions:
    """Searches the mechanism and params that are predicted to be fastest, and keeps them for mechanism="auto".

    machine: as for simulate(). flags: those of `shingle tune`, such as op, m, n, k, world, cache (a folder), confirm=2
    (mechanisms to measure here). A row's `choice` says why. Raises InvalidArgument for a wrong flag.
    """
    with machine_flag(machine) as target:
        text = _program.run("tune", "--format=json", *_program.arguments(flags), *target, negative=True)
    return Predictions(_rows(text))


def _rows(text: str) -> list[Prediction]:
    names = [field.name for field in dataclasses.fields(Prediction)]
    return [Prediction(**{name: row[name] for name in names if name in row}) for row in json.loads(text)]
