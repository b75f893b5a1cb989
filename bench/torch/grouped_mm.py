#!/usr/bin/env python3
"""Grouped products on one GPU: Shingle's kernel, a loop of cuBLASLt's fastest algorithms, and torch._grouped_mm.

    bench/torch/grouped_mm.py build/cuda/tests/bin/bench_cuda_grouped_gemm --json grouped_mm.json

The program times the first two. The groups of each case are those of the program, and so are times: medians of single
shots, launched while the device sleeps, with idle time between. A is [rows, k], B [groups, n, k].
"""
import argparse
import json
import subprocess
import tempfile
import time

import torch

from record import mean_and_least, quartiles, write_record

SLEEP_CYCLES = 1_000_000


def torch_us(row, repeat, idle_ms):
    """Times of torch._grouped_mm, in microseconds."""
    groups, n, k = len(row["group_rows"]), row["n"], row["k"]
    a = torch.rand(row["rows"], k, device="cuda", dtype=torch.bfloat16) * 2 - 1
    b = torch.rand(groups, n, k, device="cuda", dtype=torch.bfloat16) * 2 - 1
    ends = torch.tensor(row["group_rows"]).cumsum(0).to("cuda", torch.int32)
    samples = []
    for _ in range(repeat + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        time.sleep(idle_ms / 1e3)
        torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        torch._grouped_mm(a, b.transpose(-2, -1), ends)
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3)
    return samples[2:]  # the first two warm up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="bench_cuda_grouped_gemm")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--idle-ms", type=float, default=10)
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([args.program, "--repeat", str(args.repeat), "--json", file.name], check=True)
        with open(file.name, encoding="utf-8") as written:
            measured = json.load(written)["rows"]
    rows, ratios = [], []
    with torch.inference_mode():
        for row in measured:
            row["torch"] = quartiles(torch_us(row, args.repeat, args.idle_ms))
            best = min(row[name]["median_us"] for name in ("torch", "cublaslt_loop"))
            ratios.append(best / row["shingle"]["median_us"])
            print(f"{row['model']:22} {len(row['group_rows']):3} groups {row['rows']:6} rows "
                  f"{'skewed' if row['skewed'] else 'balanced':8} torch {row['torch']['median_us']:.1f} us, loop "
                  f"{row['cublaslt_loop']['median_us']:.1f}, shingle {row['shingle']['median_us']:.1f}: "
                  f"{ratios[-1]:.3f} of the better", flush=True)
            rows.append({**{key: row[key] for key in ("model", "n", "k", "rows", "skewed", "tile")},
                         "groups": len(row["group_rows"]), "torch": row["torch"],
                         **{name: quartiles(row[name]["samples_us"]) for name in ("cublaslt_loop", "shingle")}})
            torch.cuda.empty_cache()
    print(f"{mean_and_least(ratios)} (target 0.97)")
    if args.json:
        write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms)


if __name__ == "__main__":
    main()
