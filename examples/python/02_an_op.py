#!/usr/bin/env python3
"""One op: a row-parallel GEMM whose partial results are reduced and scattered while it runs.

    torchrun --nproc-per-node 2 examples/python/02_an_op.py

The same program runs on GPUs and on CPU. On CPU, ops are mm and c10d collectives.
"""

import torch
import torch.distributed as dist
from ranks import join, say
from shingle import torch as st

ROWS, IN, OUT = 512, 256, 128


def main():
    device = join()
    ranks = dist.get_world_size()
    torch.manual_seed(dist.get_rank())
    x = torch.randn(ROWS, IN // ranks, device=device)
    w = torch.randn(OUT, IN // ranks, device=device)  # [out, in], as in nn.Linear

    # On GPUs: declares the operator, and measures from how many rows on overlapping is faster.
    st.warmup(lambda: st.gemm_reduce_scatter(x, w))
    mine = st.gemm_reduce_scatter(x, w)

    expected = torch.empty_like(mine)
    dist.reduce_scatter_tensor(expected, x @ w.t())
    torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-2)
    say(f"each of {ranks} ranks has {tuple(mine.shape)} of {(ROWS, OUT)}; counters: {st.counters()}")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
