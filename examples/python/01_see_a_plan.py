"""Plans a GEMM with its all-reduce, proves the plan, and predicts what it gains. Runs without torch and without a GPU.

    python 01_see_a_plan.py
"""

import shingle

# Each of 2 ranks multiplies 8192×4096 by 4096×8192 elements. The result is the sum of both products, on both ranks.
operator = {"op": "gemm+allreduce", "m": 8192, "n": 8192, "k": 4096, "world": 2, "dtype": "bf16"}

# A plan is data: lanes, steps and counters of every rank.
plan = shingle.plan(**operator, mechanism="signal", machine="h200x8")
print(plan)

# The proof holds for every order in which ranks, lanes and tiles can run.
print(shingle.verify(plan))

# What the machine would take, by simulation: the plan, and the GEMM followed by the collective.
(prediction,) = shingle.simulate(plan, machine="h200x8")
print(f"sequential {prediction.sequential_us:.0f} us, overlapped {prediction.overlapped_us:.0f} us")

# In a notebook, `plan` alone draws its timeline.
drawing = plan.svg()
print(f"its timeline in unit costs: {len(drawing)} characters of SVG")
