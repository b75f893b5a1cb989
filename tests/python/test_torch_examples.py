"""The examples on CPU, by torchrun as their texts say."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/python"
NEEDS = {name: ["transformers", "accelerate"] for name in ("04_llama_with_tp_plan", "08_context_parallel_llama")}
NEEDS["09_expert_parallel_mixtral"] = ["transformers"]


@pytest.mark.parametrize(
    "name",
    ["02_an_op", "03_tensor_parallel_mlp", "04_llama_with_tp_plan", "05_training_step_with_compile",
     "07_sequence_parallel_attention", "08_context_parallel_llama", "09_expert_parallel_mixtral"],
)  # fmt: skip
def test_example(name):
    for package in NEEDS.get(name, []):
        pytest.importorskip(package, reason=f"{package} is not installed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*torchrun, FOLDER / f"{name}.py"], check=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
