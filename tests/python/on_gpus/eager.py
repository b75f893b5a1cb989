"""Cases of ops that are called one by one: dtypes, rows, gradients, strides, streams and groups."""

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch.choices import LIBRARY, PREDICTED, Shape
from shingle.torch.groups import find_group, name_of
from shingle.torch.settings import settings
from shingle.torch.shapes import backward_takes_lse, own_rows
from shingle.torch.warming import forced

from .common import INNER, K, N, calls, compare, grown, integers, outcome, world_size

ROWS = (1, 7, 64, 257, 1024, 4096)


def check_ops(dtype, rows, backward=False):
    """The first call of a plan launches kernels, later ones a graph. Each has inputs of its own: results that an equal
    call left in the context's memory would hide a read that comes too early."""
    for m in rows:
        for turn in range(3):
            for name, (call, leaves) in calls(m, dtype).items():
                expected = outcome(call, leaves, False, backward)
                what = f"call {turn} of {name} of {m} rows"
                compare(outcome(call, leaves, True, backward), expected, dtype, what)


def forward_bf16():
    check_ops(torch.bfloat16, ROWS)


def forward_f16():
    check_ops(torch.float16, (7, 1024))


def forward_f32():
    check_ops(torch.float32, (7, 1024))


def backward_bf16():
    check_ops(torch.bfloat16, (7, 257, 1024), backward=True)


def attention_by_fused():
    """Each call has new inputs, the first one at each number of rows too."""
    for m in (257, 512, 1024, 1536, 2048):
        for turn in range(3):
            call, leaves = calls(m, torch.bfloat16)["attention_reduce_scatter"]
            expected = outcome(call, leaves, False, False)
            with forced("fused"), torch.no_grad():
                got = call(*leaves)
            compare([got], expected, torch.bfloat16, f"call {turn} of {m} rows")


def attention_choices():
    """Forward and backward of ring_attention, each by a mechanism or by c10d, and both in a CUDA graph."""
    dtype, (call, leaves) = torch.bfloat16, calls(1024, torch.bfloat16)["ring_attention, zigzag"]
    forward = Shape("allgather+attention", 512, 512, "bf16", world_size(), attention=(4, 2, 128, True), zigzag=True)
    backward = forward._replace(op="attention-backward")
    counted = "overlapped.attention-backward"
    served = backward_takes_lse(leaves[0], 128)
    expected = outcome(call, leaves, False, True)
    for ways in [(a, b) for a in (LIBRARY, "ring") for b in (LIBRARY, "ring")]:
        for shape, way in zip((forward, forward._replace(returns_lse=True), backward), (ways[0], *ways)):
            for captured in (False, True):
                st.table.enter(shape._replace(captured=captured), [(1 << 20, way)])
        before, got = st.counters().get(counted, 0), grown(call, leaves)
        compare(got, expected, dtype, f"forward and backward by {ways}")
        assert (st.counters().get(counted, 0) > before) == (served and ways[1] != LIBRARY), ways
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            replayed = grown(call, leaves)
        for _ in range(2):
            graph.replay()
            compare(replayed, expected, dtype, f"forward and backward by {ways}, a replay")
        torch.cuda.synchronize()
        graph.reset()
    for shape in (forward, forward._replace(returns_lse=True), backward):
        for captured in (False, True):
            del st.table.rows[shape._replace(captured=captured).key]
    return None if served else "this cuDNN or GPU has no backward by the log-sum-exp"


def scatter_gradients():
    """Backward of all_gather_gemm, also in a graph and beside calls of the context: the bits of separate ops. x is
    gathered by c10d, then by copy engines beside a mechanism's product.
    """
    ranks, usual, name = dist.get_world_size(), settings.min_bucket_bytes, "overlapped.gathered_inputs"
    gpus = range(torch.cuda.device_count())
    reach = all(torch.cuda.can_device_access_peer(a, b) for a in gpus for b in gpus if a != b)
    try:
        for least_bytes, gathers in ((1 << 40, 0), (0, 2 * reach)):  # launched and captured
            st.configure(min_bucket_bytes=least_bytes)
            for rows, columns in ((7 * ranks, 2 * K), (7 * ranks, K), (1024 * ranks, K), (1024 * ranks - 1, K)):
                before = st.counters().get(name, 0)
                check_scatter_gradients(rows, columns)
                served = st.counters().get(name, 0) - before
                assert served == gathers, f"{rows} rows of {columns}: engines gathered {served} times"
    finally:
        st.configure(min_bucket_bytes=usual)


def check_scatter_gradients(rows, columns):
    dtype, group, ops = torch.bfloat16, find_group(name_of(None)), torch.ops.shingle
    ws = [integers(N, columns, dtype=dtype), integers(INNER, columns, dtype=dtype)]
    grads = [integers(rows, w.shape[0], dtype=dtype) for w in ws]
    x = integers(own_rows(rows, group), columns, dtype=dtype)

    def step():
        before = st.gemm_reduce_scatter(grads[0], ws[0].t())
        dx, dws = ops.scatter_gradients(grads, x, ws, group.name)
        return [before, dx, *dws, st.gemm_all_reduce(grads[0], dws[0].t())]

    with forced(PREDICTED):
        outs, graph = step(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured = step()
    for _ in range(3):
        graph.replay()
    with forced(LIBRARY):
        gathered = ops.all_gather(x, group.name, rows)
        expected = [st.gemm_reduce_scatter(torch.cat(grads, 1), torch.cat(ws).t())]
        expected += [grad.t() @ gathered for grad in grads]
    for got in (outs, captured):
        assert all(torch.equal(g, e) for g, e in zip(got[1:4], expected, strict=True)), f"{rows} rows"
    torch.cuda.synchronize()
    graph.reset()


def strides():
    """Rows with gaps, a transposed weight and a matrix that begins at an odd address."""
    wide, w = integers(300, 2 * K + 1, dtype=torch.bfloat16), integers(N, K, dtype=torch.bfloat16)
    for x in (wide[:, :K], wide[:, 1 : K + 1], wide[:, : 2 * K : 2]):
        for weight in (w, w.t().contiguous().t()):
            expected = outcome(st.gemm_all_reduce, (x, weight), False, False)
            compare(outcome(st.gemm_all_reduce, (x, weight), True, False), expected, torch.bfloat16, "strides")


def side_stream():
    """Calls on a stream of the program. The next call on the default stream is ordered after it by an event."""
    call, leaves = calls(512, torch.bfloat16)["gemm_reduce_scatter"]
    expected, stream = outcome(call, leaves, False, True), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = outcome(call, leaves, True, True)
    torch.cuda.current_stream().wait_stream(stream)
    compare(got, expected, torch.bfloat16, "on a side stream")


def two_groups():
    """Two contexts, whose calls one stream orders."""
    other, x, w = dist.new_group(), integers(512, K, dtype=torch.bfloat16), integers(N, K, dtype=torch.bfloat16)
    for group in (None, other, None):

        def call(x, w, group=group):
            return st.gemm_all_reduce(x, w, group)

        compare(outcome(call, (x, w), True, False), outcome(call, (x, w), False, False), torch.bfloat16, "groups")
