"""Cases of torch.compile."""

import torch
from shingle import torch as st

from .common import INNER, K, N, compare, integers, outcome


def compiled_step(mode):
    def step(x, up, down):
        (hidden,) = st.all_gather_gemm(x, [up])
        return st.gemm_reduce_scatter(torch.relu(hidden), down)

    up, down = integers(INNER, K, dtype=torch.bfloat16), integers(N, INNER, dtype=torch.bfloat16)
    for weight in (up, down):
        weight.requires_grad_()
    function = torch.compile(step, fullgraph=True, dynamic=mode is None, mode=mode)
    for rows in (64, 96) if mode is None else (64, 64, 64, 64):
        x = integers(rows, K, dtype=torch.bfloat16).requires_grad_()
        outcome(step, (x, up, down), True, True)  # declares the operators of forward and backward
        expected = outcome(step, (x, up, down), False, True)
        got = [t.clone() for t in outcome(function, (x, up, down), True, True)]
        compare(got, expected, torch.bfloat16, f"compiled, {rows} rows")


def compiled():
    compiled_step(None)


def compiled_with_graphs():
    compiled_step("reduce-overhead")
