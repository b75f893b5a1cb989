"""Predictions, tuning and profiles."""

import pytest

import shingle

LARGE = {"op": "gemm+reducescatter", "n": 8192, "k": 3584, "world": 8, "dtype": "bf16"}


def test_simulates_a_plan():
    plan = shingle.plan(**LARGE, m=8192, mechanism="fused", machine="h200x8")
    (row,) = shingle.simulate(plan, machine="h200x8")
    assert (row.op, row.m, row.mechanism, row.machine) == ("gemm+reducescatter", 8192, "fused", "h200x8")
    assert row.speedup == pytest.approx(row.sequential_us / row.overlapped_us)
    assert row.compute_us < row.overlapped_us < row.sequential_us


def test_a_sweep_takes_single_sizes():
    (row,) = shingle.simulate(**LARGE, mechanism="sequential", machine="h200x8", sweep={"m": "1K"})
    assert row.m == 1024
    with pytest.raises(shingle.InvalidArgument, match="expected sizes by name"):
        shingle.simulate(**LARGE, machine="h200x8", sweep="m=1,2")


def test_simulates_a_sweep(tmp_path):
    rows = shingle.simulate(**LARGE, mechanism=["sequential", "fused"], machine="h200x8", sweep={"m": ["1K", 2048]})
    assert [(row.m, row.mechanism) for row in rows] == [
        (1024, "sequential"), (1024, "fused"), (2048, "sequential"), (2048, "fused")
    ]  # fmt: skip
    assert len(rows[1:3]) == 2
    assert "2048×8192×3584" in repr(rows) and "<svg" in rows._repr_html_()
    assert any(event["name"].startswith("gemm") for event in rows.trace()["traceEvents"])
    rows.report(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()


def test_a_row_without_a_plan_has_a_reason():
    (row,) = shingle.simulate(op="gemm", m=64, n=64, k=64, mechanism="ring", machine="h200x8")
    assert row.overlapped_us is None and "no communication" in row.reason
    assert row.reason in repr(shingle.simulate(op="gemm", m=64, n=64, k=64, mechanism="ring", machine="h200x8"))


def test_notes_are_warnings():
    with pytest.warns(UserWarning, match="deepseek-v3: without qkv"):
        shingle.simulate(model="deepseek-v3", layer_ops=True, tokens=512, tp=8, machine="h200x8")


def test_machines_by_name_nodes_file_and_profile(tmp_path):
    def us(machine):
        return shingle.simulate(**LARGE, m=8192, mechanism="fused", machine=machine)[0].overlapped_us

    shipped = shingle.info()["machines"]
    assert "h200x8" in shipped and "llama-3-8b" in shingle.info()["models"]
    assert us("h200x8 * 2, 8x400Gb/s") >= us("h200x8")
    with pytest.raises(shingle.InvalidArgument, match="no machine 'h300'"):
        us("h300")
    own = shingle.Machine('{"format": "shingle-machine", "version": 1, "name": "own", "workers": 132}')
    with pytest.raises(shingle.InvalidArgument):
        us(own)  # no source of its workers
    own.save(tmp_path / "own.json")
    assert shingle.Machine.load(tmp_path / "own.json") == own and own.name == "own"
    with pytest.raises(shingle.IoError, match="none.json"):
        shingle.Machine.load(tmp_path / "none.json")


def test_tunes(tmp_path):
    (row,) = shingle.tune(**LARGE, m=8192, machine="h200x8", cache=tmp_path)
    assert row.mechanism in row.choice["reason"] and row.params
    assert list(tmp_path.iterdir())


def test_profiles_this_machine():
    machine = shingle.profile(world=2, link="1GB/s,10us", repeat=1, budget=1, most_spread=0)
    assert machine.data["link"] == {"gbps": 1.0, "latency_us": 10.0}
    assert machine.data["ranks"] == 2 and machine.name in repr(machine)
    shingle.plan(op="gemm+allreduce", m=256, n=256, k=256, world=2, mechanism="fused", machine=machine)


def test_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("svg")
    from shingle import plot

    rows = shingle.simulate(**LARGE, mechanism=["sequential", "fused"], machine="h200x8", sweep={"m": [1024, 2048]})
    axes = plot.sweep(rows)
    assert [line.get_label() for line in axes.lines] == ["sequential", "fused"]
    plan = shingle.plan(**LARGE, m=2048, mechanism="signal", machine="h200x8")
    axes = plot.timeline(shingle.simulate(plan, machine="h200x8"))
    assert {label.get_text() for label in axes.get_yticklabels()} >= {"compute"}
    with pytest.raises(shingle.InvalidArgument, match="rank = 9"):
        plot.timeline(shingle.simulate(plan, machine="h200x8"), rank=9)
    with pytest.raises(shingle.InvalidArgument, match="size = 'x'"):
        plot.sweep(rows, size="x")
