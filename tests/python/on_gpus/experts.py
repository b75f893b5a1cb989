"""Cases of experts."""

import torch
from shingle import errors
from shingle import torch as st
from shingle.torch.choices import LIBRARY
from shingle.torch.warming import CANDIDATES, forced

from .common import compare, experts, rank_of


def experts_choices():
    """moe and its gradients by each mechanism, all or some, and after warmup. A capture is refused."""
    for tokens in (64, 1000):
        call, leaves = experts(tokens + 8 * rank_of(), torch.bfloat16)
        for needs in ((True, True, True, True), (True, False, False, True), (True, True, False, False)):
            for leaf, need in zip(leaves, needs):
                leaf.requires_grad_(need)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]

            def step(call=call, leaves=leaves, wanted=wanted):
                out = call(*leaves)
                return [out.detach(), *torch.autograd.grad(out, wanted, torch.ones_like(out))]

            with forced(LIBRARY):
                expected = step()
            for choice in CANDIDATES["moe"]:
                with forced(choice):
                    for _ in range(2):
                        what = f"moe of {tokens} tokens by {choice}, gradients {needs}"
                        compare(step(), expected, torch.bfloat16, what)
    st.configure(max_m=2048)
    st.warmup(step, least_m=1024)
    compare(step(), expected, torch.bfloat16, "moe after warmup")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            call(*leaves)
    except errors.Unsupported as error:
        assert "the host reads topk_ids" in str(error)
    else:
        raise AssertionError("a capture of moe was not refused")
    torch.cuda.synchronize()
    st.configure(max_m=8192)
    return {shape.op: rows for shape, rows in st.table.rows.items() if shape.experts}
