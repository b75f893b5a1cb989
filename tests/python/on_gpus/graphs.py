"""Cases of CUDA graphs, of calls that libshingle_torch.so serves, and of warmup, which measures both."""

import torch
import torch.distributed as dist
from shingle import errors
from shingle import torch as st
from shingle.torch import native
from shingle.torch.choices import LIBRARY, PREDICTED
from shingle.torch.warming import CANDIDATES, forced

from .common import K, N, calls, compare, integers


def cuda_graph():
    """Calls of two sizes in a graph, replayed on other inputs. Before warmup a capture is refused."""
    dtype = torch.bfloat16
    new = integers(N + 16, K, dtype=dtype)  # an operator that no other case declares
    x = integers(640, K, dtype=dtype)

    def step(x):
        return st.gemm_all_reduce(x, new), st.gemm_reduce_scatter(x[:320], new)

    with forced(PREDICTED):
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step(x)
        except errors.Unsupported as error:
            assert "call shingle.torch.warmup first" in str(error)
        else:
            raise AssertionError("a capture before warmup was not refused")
        torch.cuda.synchronize()
        st.warmup(lambda: step(x), tune=False)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outs = step(x)
    for _ in range(3):
        x.copy_(integers(640, K, dtype=dtype))
        graph.replay()
        with forced(LIBRARY):
            compare(outs, step(x), dtype, "a replay")
    torch.cuda.synchronize()
    graph.reset()


def repeated():
    """Calls like an earlier one, which libshingle_torch.so serves: on other inputs, on a side stream and in a graph."""
    assert native.available("cuda"), "no libshingle_torch.so beside libshingle.so, or PyTorch lacks a function"
    dtype, served, serve = torch.bfloat16, [], native.serve
    names = ("gemm_reduce_scatter", "gemm_all_reduce", "gemm_all_reduce_norm", "all_gather_gemm", "mlp")
    inputs = [calls(512, dtype) for _ in range(5)]

    def noted(key, tensors):
        found = serve(key, tensors)
        served.append(found is not None)
        return found

    def step(ops):
        return [out for name in names for out in torch.utils._pytree.tree_leaves(ops[name][0](*ops[name][1]))]

    native.serve, stream, graph = noted, torch.cuda.Stream(), torch.cuda.CUDAGraph()
    try:
        with torch.no_grad(), forced(PREDICTED):
            got = [step(inputs[0]), step(inputs[1])]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                got.append(step(inputs[2]))
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                got += [step(inputs[3]), step(inputs[4])]
            graph.replay()
    finally:
        native.serve = serve
    expected = [by_library for by_library in (False, True, True, False, True) for _ in names]
    assert served == expected, f"served by libshingle_torch.so: {served}; expected {expected}"
    with torch.no_grad(), forced(LIBRARY):
        for outs, ops in zip(got, inputs):
            compare(outs, step(ops), dtype, "a repeated call")
    torch.cuda.synchronize()
    graph.reset()


def warmup():
    """Measures the mechanisms of each operator. Calls by all of them are right, also in a graph."""
    st.configure(max_m=2048, min_m=1)
    x, w = integers(2048, 1024, dtype=torch.bfloat16), integers(1024, 1024, dtype=torch.bfloat16)
    ops = {"gemm+reducescatter": st.gemm_reduce_scatter, "gemm+allreduce": st.gemm_all_reduce,
           "allgather+gemm": lambda x, w: st.all_gather_gemm(x[: x.shape[0] // dist.get_world_size()], [w])[0]}  # fmt: skip

    def step():
        return [op(x, w) for op in ops.values()]

    st.warmup(step, least_m=256)
    for name, op in ops.items():
        for m in (256, 2048):
            with forced(LIBRARY):
                expected = op(x[:m], w)
            for choice in (None, *CANDIDATES[name]):
                with forced(choice):
                    compare([op(x[:m], w)], [expected], torch.bfloat16, f"{name} of {m} rows by {choice}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = step()
    graph.replay()
    with forced(LIBRARY):
        compare(outs, step(), torch.bfloat16, "a graph of tuned calls")
    torch.cuda.synchronize()
    graph.reset()
    measured = {shape: rows for shape, rows in st.table.rows.items() if shape.n == 1024}
    return {f"{shape.op}{', captured' if shape.captured else ''}": rows for shape, rows in measured.items()}
