#!/usr/bin/env python3
"""Attention between two all-to-alls: ulysses_attention by its mechanism, by NCCL, and the attention alone.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/ulysses.py --json ulysses.json

`sequential` exchanges by NCCL and attends by the same kernels as `shingle`. `alone` is that attention of a rank's heads
to all tokens, by PyTorch with cuDNN. `hidden` is (t_sequential - t_shingle) / (t_sequential - t_alone). Results are
compared with those of c10d and PyTorch's attention. The ways take turns; times are of the slowest rank. `--cpu` tries
the program without GPUs.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.warming import forced
from torch.nn.attention import SDPBackend, sdpa_kernel

from record import join_on_any, parsed, require_close, sampled, times_of, write_record

BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]  # the first that serves
BOUND = 1e-2  # relative distance of bf16 results


def measure(m, heads, kv_heads, head_dim, causal, device, args):
    world, dtype = dist.get_world_size(), torch.float32 if args.cpu else torch.bfloat16
    counts, like = (heads, kv_heads, kv_heads), {"device": device, "dtype": dtype}
    q, k, v = (torch.randn(m // world, count, head_dim, **like) for count in counts)
    own = [torch.randn(1, count // world, m, head_dim, **like) for count in counts]

    def by(choice):
        def call():
            with forced(choice):
                return st.ulysses_attention(q, k, v, causal=causal)

        return call

    def alone():
        with sdpa_kernel(BACKENDS, set_priority=True):
            return F.scaled_dot_product_attention(*own, is_causal=causal, enable_gqa=heads != kv_heads)

    ours = {"sequential": LIBRARY if args.cpu else "sequential", "shingle": LIBRARY if args.cpu else PREDICTED}
    runs = {name: by(choice) for name, choice in ours.items()} | {"alone": alone}
    reference = by(LIBRARY)()
    for name in ours:
        require_close(runs[name](), reference, BOUND, (m, heads, name))
    times = sampled(runs, args)
    sequential, shingle, bare = (times[name]["median_us"] for name in runs)
    return {"m": m, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "causal": causal, "world": world,
            "hidden": (sequential - shingle) / (sequential - bare), **times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384, 32768, 65536], help="of a rank")
    parser.add_argument("--heads", nargs="+", default=["64/8/128/causal", "48/48/128/full"],
                        help="heads/kv_heads/head_dim, then causal or full")
    args = parsed(parser, repeat=7)
    rank, device = join_on_any(args)
    st.configure(max_m=dist.get_world_size() * max(args.tokens))
    rows = []
    for sizes in args.heads:
        *counts, mask = sizes.split("/")
        for tokens in args.tokens:
            row = measure(dist.get_world_size() * tokens, *map(int, counts), mask == "causal", device, args)
            rows.append(row)
            if rank == 0:
                print(f"{tokens} tokens a rank, {sizes}: {times_of(row)}; hidden {row['hidden']:.2f}", flush=True)
    if rank == 0 and args.json:
        write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms)
    if not args.cpu:
        torch.cuda.synchronize()
        st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
