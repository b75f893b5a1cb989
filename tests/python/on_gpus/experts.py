"""Cases of experts."""

import torch
import torch.distributed as dist
from shingle import errors
from shingle import torch as st
from shingle.torch.choices import LIBRARY
from shingle.torch.warming import CANDIDATES, forced

from .common import INNER, K, N, compare, experts, integers, rank_of, world_size


def experts_choices():
    return choices_of("moe")


def sliced_experts_choices():
    return choices_of("moe-tp", tensor_parallel=True)


def choices_of(op, **options):
    """moe and its gradients by each mechanism, all or some, and after warmup. A capture is refused."""
    for tokens in (64, 1000):
        call, leaves = experts(tokens + 8 * rank_of(), torch.bfloat16, **options)
        for needs in ((True, True, True, True), (True, False, False, True), (True, True, False, False)):
            for leaf, need in zip(leaves, needs):
                leaf.requires_grad_(need)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]

            def step(call=call, leaves=leaves, wanted=wanted):
                out = call(*leaves)
                return [out.detach(), *torch.autograd.grad(out, wanted, torch.ones_like(out))]

            with forced(LIBRARY):
                expected = step()
            for choice in CANDIDATES[op]:
                with forced(choice):
                    for _ in range(2):
                        what = f"{op} of {tokens} tokens by {choice}, gradients {needs}"
                        compare(step(), expected, torch.bfloat16, what)
    st.configure(max_m=2048)
    st.warmup(step, least_m=1024)
    compare(step(), expected, torch.bfloat16, f"{op} after warmup")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            call(*leaves)
    except errors.Unsupported as error:
        assert "the host reads topk_ids" in str(error)
    else:
        raise AssertionError(f"a capture of {op} was not refused")
    torch.cuda.synchronize()
    st.configure(max_m=8192)
    return {shape.op: rows for shape, rows in st.table.rows.items() if shape.experts}


def experts_with_capacity():
    return replays("moe", 4)


def sliced_experts_with_capacity():
    return replays("moe-tp", 4 * world_size(), tensor_parallel=True)


def replicated_experts_with_capacity():
    return replays("moe+allreduce", 4 * world_size(), tensor_parallel=True, replicated=True)


def replays(op, held, **options):
    """moe with a capacity and its gradients in one CUDA graph, by each mechanism and by c10d: replays of new routings.

    What is dropped differs from routing to routing, and is the same by all of them.
    """
    replicated = options.get("replicated", False)
    dtype, tokens, count = torch.bfloat16, 600 - (0 if replicated else 40 * rank_of()), 4 * world_size()
    sizes = (tokens, K), (held, 2 * INNER, K), (held, N, INNER)
    leaves = [integers(*shape, dtype=dtype).requires_grad_() for shape in sizes]
    leaves.append(torch.rand(tokens, 2, device="cuda").requires_grad_())
    ids = torch.zeros(tokens, 2, dtype=torch.int64, device="cuda")

    def share(*tensors):
        for of in tensors if replicated else ():
            dist.broadcast(of.detach(), 0)

    share(leaves[0], leaves[3])

    def step():
        out, dropped = st.moe(*leaves[:3], ids, leaves[3], capacity=150, max_tokens=600, **options)
        return [out.detach(), *torch.autograd.grad(out, leaves, torch.ones_like(out)), dropped]

    graphs, counted = {}, set()
    for choice in (LIBRARY, *CANDIDATES[op]):
        with forced(choice):
            step()  # declares its operators
            torch.cuda.synchronize()
            dist.barrier()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                graphs[choice] = graph, step()
    for turn in range(100):
        ids.copy_(torch.randint(-1, max(count >> turn % 4, 1), ids.shape))
        share(ids)
        found = {}
        for choice, (graph, replayed) in graphs.items():
            graph.replay()
            found[choice] = [of.clone() for of in replayed]
        *expected, dropped = found[LIBRARY]
        counted.add(tuple(dropped.tolist()))
        for choice, (*got, of_choice) in found.items():
            assert of_choice.tolist() == dropped.tolist(), (turn, choice)
            compare(got, expected, dtype, f"replay {turn} by {choice}")
    assert len(counted) > 3 and max(counted)[0] > 0, counted
    torch.cuda.synchronize()
    graphs.clear()
    return f"dropped up to {max(counted)[0]} of {2 * tokens} choices"
