"""Predicts a layer of Llama-3 70B on machines and clusters by their profiles. Runs without torch and without a GPU.

    python 06_plan_a_cluster_you_do_not_have.py [FILE.html]

With a file it also writes a page with tables and timelines, readable offline.
"""

import sys

import shingle

layer = {"model": "llama-3-70b", "layer_ops": True, "tokens": 8192}

# A machine is a profile that ships, a file of your own, or nodes of either with their network.
for machine, ranks in [("h200x8", 8), ("a100x8-nvlink", 8), ("h200x8 * 2, 8x400Gb/s", 16)]:
    predictions = shingle.simulate(**layer, tp=ranks, machine=machine, mechanism="auto")
    sequential = sum(row.sequential_us for row in predictions)
    overlapped = sum(row.overlapped_us for row in predictions)
    print(f"{machine}, {ranks} ranks: {sequential / 1e3:.2f} ms a layer, overlapped {overlapped / 1e3:.2f} ms")
    print(predictions, end="\n\n")

# Which mechanism serves which size? Each row is a mechanism with one number of tokens.
sweep = shingle.simulate(
    op="gemm+reducescatter", n=8192, k=3584, world=8, dtype="bf16",
    mechanism="sequential,signal,fused", machine="h200x8", sweep={"m": [1024, 4096, 16384]},
)  # fmt: skip
for tokens in (1024, 4096, 16384):
    fastest = min((row for row in sweep if row.m == tokens), key=lambda row: row.overlapped_us)
    print(f"{tokens} tokens: {fastest.mechanism}, {fastest.overlapped_us:.0f} us")

if len(sys.argv) > 1:
    sweep.report(sys.argv[1])
