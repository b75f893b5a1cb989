"""Plans and their proofs."""

import dataclasses
import json

import pytest

import shingle

SMALL = {"m": 96, "n": 80, "k": 64, "world": 2}


def test_a_plan_is_data():
    plan = shingle.plan(op="gemm+allreduce", mechanism="fused", **SMALL)
    assert plan.mechanism == "fused"
    assert plan.problem == {"op": "gemm+allreduce", "dtype": "f32", **SMALL}
    assert len(plan.data["ranks"]) == 2
    assert "rank 1: as rank 0" in str(plan)
    assert "rank 0" not in plan.text(rank=1).splitlines()
    assert plan.text(lowered=True) != plan.text()
    assert plan._repr_svg_().startswith("<svg")
    assert repr(plan) == "<Plan fused: op=gemm+allreduce world=2 m=96 n=80 k=64 dtype=f32>"


def test_a_plan_outlives_its_process(tmp_path):
    plan = shingle.plan(op="allgather+gemm", **SMALL)
    plan.save(tmp_path / "plan.json")
    assert shingle.Plan.load(tmp_path / "plan.json") == plan
    untimed = [dataclasses.replace(shingle.verify(of), us=0) for of in (plan, tmp_path / "plan.json")]
    assert untimed[0] == untimed[1]


def test_several_plans():
    layer = shingle.plans(model="llama-3-8b", layer_ops=True, tokens=512, tp=2, machine="h200x8")
    assert [plan.problem["op"] for plan in layer] == ["allgather+gemm", "gemm+reducescatter"] * 2
    one_each = shingle.plans(op="gemm+allreduce", mechanism=["sequential", "chunked"], chunks=2, **SMALL)
    assert [plan.mechanism for plan in one_each] == ["sequential", "chunked"]
    with pytest.raises(shingle.InvalidArgument, match="2 plans.*use plans"):
        shingle.plan(op="gemm+allreduce", mechanism=["sequential", "chunked"], **SMALL)


def test_a_proof_says_what_holds():
    plan = shingle.plan(op="gemm+allreduce", mechanism="fused", **SMALL)
    proof = shingle.verify(plan)
    assert "no race" in proof.claims and proof.skew == 1 and proof.world == 2
    assert str(proof).startswith("proven: fused plan for gemm+allreduce 96x80x64")
    assert len(shingle.verify(plan, context=True).claims) == len(proof.claims) + 1


def test_a_failed_proof_names_the_step():
    plan = shingle.plan(op="gemm+allreduce", mechanism="fused", **SMALL)
    wrong = json.loads(plan.json)
    wrong["ranks"][0]["lanes"][0]["steps"][-1]["target"] = 1
    with pytest.raises(shingle.ProofFailed, match="rank 0") as failed:
        shingle.verify(shingle.Plan(json.dumps(wrong)))
    assert failed.value.rule == "race" and "rank 0" in failed.value.failure


def test_failures_name_what_is_wrong(tmp_path):
    with pytest.raises(shingle.InvalidArgument, match="unknown operator 'nose'"):
        shingle.plan(op="nose", **SMALL)
    with pytest.raises(shingle.InvalidArgument, match="--bananas"):
        shingle.plan(op="gemm", bananas=3, **SMALL)
    with pytest.raises(shingle.Unsupported, match="no ring plan for gemm"):
        shingle.plan(op="gemm", mechanism="ring", **SMALL)
    with pytest.raises(shingle.InvalidArgument, match="--rank 2 is outside"):
        shingle.plan(op="gemm", **SMALL).text(rank=2)
    with pytest.raises(shingle.IoError, match="none.json"):
        shingle.verify(tmp_path / "none.json")
    with pytest.raises(shingle.IoError, match="none.json"):
        shingle.Plan.load(tmp_path / "none.json")
    with pytest.raises(shingle.IoError, match="no folder"):
        shingle.plan(op="gemm", **SMALL).save(tmp_path / "no folder" / "plan.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(shingle.InvalidArgument, match="list.json is not a plan"):
        shingle.Plan.load(tmp_path / "list.json")
