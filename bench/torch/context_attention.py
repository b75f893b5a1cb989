#!/usr/bin/env python3
"""Causal attention whose tokens are sharded: all-gather of K and V, ring_attention, and PyTorch's context_parallel.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/context_attention.py --json context_attention.json

All have their tokens in a zigzag, so that ranks have equal work. `sequential` gathers K and V by NCCL and attends by
the same kernels as `shingle`. All results are compared with it. context_parallel takes no grouped queries: heads of K
and V are repeated for it beforehand. Times are forward, then forward and backward, of the slowest rank. The two ways of
Shingle take turns; those of PyTorch come after them. `--cpu` tries the program without GPUs and PyTorch's ways.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.warming import forced
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method

from record import join_on_any, parsed, require_close, sampled, times_of, write_record

BOUND = 1e-2  # relative distance of bf16 results


def inputs(m, heads, kv_heads, head_dim, device, dtype):
    """This rank's tokens of q, k and v, and the gradient of the result."""
    return [torch.randn(m // dist.get_world_size(), count, head_dim, device=device, dtype=dtype)
            for count in (heads, kv_heads, kv_heads, heads)]


def ours(choice, tensors, backward):
    """A call of ring_attention, and of its backward, by one choice."""
    *qkv, grad = tensors
    leaves = [x.detach().requires_grad_(backward) for x in qkv]

    def call():
        with forced(choice):
            out = st.ring_attention(*leaves, causal=True, zigzag=True)
            return (out, *torch.autograd.grad(out, leaves, grad)) if backward else (out,)

    return call


def pytorchs(tensors, backward):
    """A call of scaled_dot_product_attention on own tokens, to be made in context_parallel."""
    *qkv, grad = ([x.transpose(0, 1)[None].contiguous() for x in tensors])
    shared = qkv[0].shape[1] // qkv[1].shape[1]
    qkv = [qkv[0], *(x.repeat_interleave(shared, 1) for x in qkv[1:])]  # it takes no grouped queries
    leaves = [x.detach().requires_grad_(backward) for x in qkv]

    def call():
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        return (out, *torch.autograd.grad(out, leaves, grad)) if backward else (out,)

    return call


def measure(m, heads, kv_heads, head_dim, backward, device, args):
    tensors = inputs(m, heads, kv_heads, head_dim, device, torch.float32 if args.cpu else torch.bfloat16)
    baseline, own = (LIBRARY, LIBRARY) if args.cpu else ("sequential", PREDICTED)
    runs = {"sequential": ours(baseline, tensors, backward), "shingle": ours(own, tensors, backward)}
    references = runs["sequential"]()
    for reference, result in zip(references, runs["shingle"](), strict=True):
        require_close(result, reference, BOUND, (m, heads, "shingle"))
    row = {"m": m, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "backward": backward,
           "world": dist.get_world_size(), **sampled(runs, args)}
    if args.cpu:
        return row
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for rotation in ("allgather", "alltoall"):
        set_rotate_method(rotation)
        places = torch.empty(2 * dist.get_world_size(), device=device)  # it needs a buffer
        with context_parallel(mesh, buffers=[places], buffer_seq_dims=[0], no_restore_buffers={places}):
            call = pytorchs(tensors, backward)
            require_close(call()[0][0].transpose(0, 1), references[0], BOUND, (m, heads, rotation))
            row |= sampled({f"context_parallel_{rotation}": call}, args)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16384, 32768, 65536], help="of all ranks")
    parser.add_argument("--heads", nargs="+", default=["32/8/128", "24/24/128"], help="heads/kv_heads/head_dim")
    args = parsed(parser, repeat=7)
    rank, device = join_on_any(args)
    st.configure(max_m=max(args.tokens))
    rows = []
    for sizes in args.heads:
        for m in args.tokens:
            for backward in (False, True):
                row = measure(m, *map(int, sizes.split("/")), backward, device, args)
                rows.append(row)
                if rank == 0:
                    print(f"{m} tokens, {sizes}{', backward' if backward else ''}: {times_of(row)}", flush=True)
    if rank == 0 and args.json:
        write_record(args.json, rows, repeat=args.repeat, idle_ms=args.idle_ms)
    if not args.cpu:
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
