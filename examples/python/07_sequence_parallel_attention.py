#!/usr/bin/env python3
"""Attention of a video transformer whose tokens are sharded over the ranks (Ulysses); then checked against the whole.

    torchrun --nproc-per-node 2 examples/python/07_sequence_parallel_attention.py

On GPUs it has the heads of Step-Video (48 of 128), and prints what a call takes, with and without overlap, launched
one by one and in a CUDA graph.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import join, say
from shingle import torch as st
from shingle.torch.choices import LIBRARY
from shingle.torch.warming import forced
from torch import nn

CALLS = 10


class Attention(nn.Module):
    """Self-attention over all frames. x: this rank's tokens, [own tokens, width]. All but the attention is local."""

    def __init__(self, heads, head_dim):
        super().__init__()
        self.heads, width = heads, heads * head_dim
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, attend):
        q, k, v = (part.unflatten(1, (self.heads, -1)) for part in self.qkv(x).chunk(3, dim=1))
        return self.out(attend(q, k, v).flatten(1))


def whole(q, k, v):
    """Attention on one rank, of [tokens, heads, head_dim]."""
    out = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)))
    return out[0].transpose(0, 1)


def milliseconds(call):
    """Mean time of a call on a GPU, the slowest rank's."""
    call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    dist.barrier()
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    time = torch.tensor(begin.elapsed_time(end) / CALLS, device="cuda")
    dist.all_reduce(time, op=dist.ReduceOp.MAX)
    return time.item()


def main():
    device = join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    on_gpu = device.type == "cuda"
    tokens, heads, head_dim = (16384, 48, 128) if on_gpu else (40, 4, 8)
    st.configure(max_m=tokens)
    torch.manual_seed(0)  # the same weights and tokens on every rank
    layer = Attention(heads, head_dim).to(device, torch.bfloat16 if on_gpu else torch.float32)
    x = torch.randn(tokens, heads * head_dim).to(device, layer.out.weight.dtype)
    own = x.chunk(ranks)[rank]

    got, expected = layer(own, st.ulysses_attention), layer(x, whole).chunk(ranks)[rank]
    torch.testing.assert_close(got, expected, rtol=2e-2 if on_gpu else 1e-4, atol=2e-2 if on_gpu else 1e-5)
    say(f"{tokens} tokens on {ranks} ranks: {tuple(got.shape)} a rank, equal to unsharded")
    if on_gpu:
        with torch.no_grad():
            overlapped = milliseconds(lambda: layer(own, st.ulysses_attention))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                replayed = layer(own, st.ulysses_attention)
            in_graph = milliseconds(graph.replay)
            torch.testing.assert_close(replayed, expected, rtol=2e-2, atol=2e-2)
            graph.reset()
            with forced(LIBRARY):
                one_by_one = milliseconds(lambda: layer(own, st.ulysses_attention))
        say(f"a layer takes {overlapped:.2f} ms, in a graph {in_graph:.2f} ms, "
            f"and {one_by_one:.2f} ms with all-to-alls before and after attention")  # fmt: skip
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
