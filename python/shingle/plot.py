"""Figures with matplotlib: pip install shingle[plot]. Each function draws into `axes`, or into a new figure."""

from typing import TYPE_CHECKING

from . import errors
from ._predict import Predictions, Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours of lanes, by kind.
COLOURS = {"compute": "#3987e5", "communicate": "#e08a3c", "copy": "#4aa26c"}


def timeline(simulation: Simulation, axes: "Axes | None" = None, *, rank: int = 0) -> "Axes":
    """Draws when each lane of a rank is busy, in microseconds. Waits are left blank.

    Raises InvalidArgument if the simulation has no such rank, Unsupported without matplotlib.
    """
    events = [event for event in simulation.trace()["traceEvents"] if event["pid"] == rank]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    if not lanes:
        raise errors.InvalidArgument(f"rank = {rank}: the simulation has no such rank; rank 0 is always there")
    axes = axes or _new_axes()
    for event in events:
        if event["ph"] == "X" and not event["name"].startswith("await"):
            colour = COLOURS.get(event["cat"], "#8c8c8c")
            axes.barh(event["tid"], event["dur"], left=event["ts"], color=colour, edgecolor="white")
    axes.set_yticks(list(lanes), list(lanes.values()))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("µs")
    axes.set_title(f"rank {rank}")
    return axes


def sweep(predictions: Predictions, axes: "Axes | None" = None, *, size: str = "m") -> "Axes":
    """Draws predicted times over a size (m, n, k, inner or world): a line for each mechanism, and the sequential one.

    Raises InvalidArgument if there is nothing to draw or the size is another, Unsupported without matplotlib.
    """
    if size not in ("m", "n", "k", "inner", "world"):
        raise errors.InvalidArgument(f"size = {size!r} must be 'm', 'n', 'k', 'inner' or 'world'")
    rows = sorted((row for row in predictions if row.overlapped_us), key=lambda row: getattr(row, size))
    if not rows:
        raise errors.InvalidArgument("no prediction has a time; simulate operators that the mechanism serves")
    axes = axes or _new_axes()
    baseline = {getattr(row, size): row.sequential_us for row in rows}
    axes.plot(list(baseline), list(baseline.values()), "--", color="#8c8c8c", label="sequential")
    for mechanism in dict.fromkeys(row.mechanism for row in rows if row.mechanism != "sequential"):
        mine = [row for row in rows if row.mechanism == mechanism]
        axes.plot([getattr(row, size) for row in mine], [row.overlapped_us for row in mine], "o-", label=mechanism)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(size)
    axes.set_ylabel("predicted time, µs")
    axes.legend()
    return axes


def _new_axes() -> "Axes":
    try:
        from matplotlib import pyplot
    except ImportError:
        raise errors.Unsupported("plots need matplotlib: pip install shingle[plot]") from None
    return pyplot.subplots(layout="constrained")[1]
