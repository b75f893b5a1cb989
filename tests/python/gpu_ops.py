#!/usr/bin/env python3
"""Checks the ops on GPUs against mm + NCCL: gpu_ops.py [--ranks N] [--only NAME,...] [--deadline SECONDS]

Starts N processes (default: one for each GPU, at least two) and gives them the GPUs in turn. On one GPU, NCCL is told
that the processes are on different hosts, because it refuses two ranks on a GPU. Each rank runs all cases and prints a
line for each. Every case has a deadline. Exits 1 if a case fails on a rank. SHINGLE_LIBRARY names libshingle.so.
"""

import argparse
import datetime
import faulthandler
import gc
import os
import pathlib
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "python")]
CASE_DEADLINE_S = 200
K, N, INNER = 256, 384, 128
ROWS = (1, 7, 64, 257, 1024, 4096)


def start_ranks(args):
    """The parent: starts a process for each rank, and stops them all at the deadline."""
    import torch
    from ranks import free_port

    gpus = torch.cuda.device_count()
    if gpus == 0:
        print("gpu_ops: no GPU")
        return 77
    ranks, port, processes = args.ranks or max(gpus, 2), free_port(), []
    for rank in range(ranks):
        variables = {"RANK": rank, "LOCAL_RANK": rank % gpus, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "NCCL_NVLS_ENABLE": 0, "OMP_NUM_THREADS": 2}  # fmt: skip
        if ranks > gpus:
            variables |= {"NCCL_HOSTID": f"h{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
                          "NCCL_IB_DISABLE": 1}  # fmt: skip
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        processes.append(
            subprocess.Popen([sys.executable, __file__, "--only", args.only, "--as-rank"], env=environment)
        )
    deadline, codes = time.monotonic() + args.deadline, []
    for rank, process in enumerate(processes):
        try:
            codes.append(process.wait(max(deadline - time.monotonic(), 1)))
        except subprocess.TimeoutExpired:
            print(f"rank {rank}: still running after {args.deadline} s", flush=True)
            codes.append(124)
            process.kill()
    print(f"gpu_ops: {ranks} ranks on {gpus} GPUs, exit codes {codes}: {'FAILED' if any(codes) else 'passed'}")
    return int(any(codes))


def run_cases(only):
    """A rank: runs the cases in order. After a failure the others are not tried, because ranks may have diverged."""
    import torch
    import torch.distributed as dist

    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    faulthandler.dump_traceback_later(CASE_DEADLINE_S, exit=True)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=datetime.timedelta(seconds=60))
    for name, case in CASES.items():
        if only and name not in only:
            continue
        faulthandler.dump_traceback_later(CASE_DEADLINE_S, exit=True)
        begin = time.monotonic()
        torch.manual_seed(7)
        try:
            note = case()
            torch.cuda.synchronize()
        except BaseException:
            print(f"rank {rank}: {name} FAILED\n{traceback.format_exc()}", flush=True)
            os._exit(1)  # the process group may hang in its destructor
        print(
            f"rank {rank}: {name} passed in {time.monotonic() - begin:.1f} s{f': {note}' if note else ''}", flush=True
        )
    from shingle import torch as st

    faulthandler.dump_traceback_later(CASE_DEADLINE_S, exit=True)
    if rank == 0:
        print("counters:", st.counters(), flush=True)
    torch._dynamo.reset()  # its CUDA graphs hold calls of contexts
    gc.collect()
    st.release()
    dist.barrier()
    dist.destroy_process_group()
    return 0


def integers(*shape, dtype, seed=None):
    """Integers in [-1, 1]: sums are exact in every dtype, in any order. seed: the same on all ranks."""
    import torch

    generator = torch.Generator("cuda")
    generator.manual_seed(seed if seed is not None else torch.randint(1 << 30, (), device="cpu").item() + rank_of())
    return torch.randint(-1, 2, shape, generator=generator, device="cuda").to(dtype)


def rank_of():
    import torch.distributed as dist

    return dist.get_rank()


def calls(m, dtype):
    """Each op on m rows: {name: (function of leaves, leaves)}."""
    import torch
    import torch.distributed as dist
    from shingle import torch as st
    from shingle.torch import shapes
    from shingle.torch.groups import find_group, name_of

    group = find_group(name_of(None))
    mine = shapes.own_rows(m, group)
    even = [m // group.size + (r < m % group.size) for r in range(group.size)]
    splits = [even] * dist.get_world_size()

    def new(*shape, seed=None):
        return integers(*shape, dtype=dtype, seed=seed).requires_grad_()

    x, w, shard = new(m, K), new(N, K), new(mine, K)
    bias, residual, weight = new(N, seed=1), new(m, N, seed=2), new(N, seed=3)
    return {
        "gemm_reduce_scatter": (lambda x, w, b: st.gemm_reduce_scatter(x, w, bias=b), (x, w, bias)),
        "gemm_all_reduce": (lambda x, w, b: st.gemm_all_reduce(x, w, bias=b), (x, w, bias)),
        "gemm_all_reduce_norm": (
            lambda x, w, b, r, n: st.gemm_all_reduce(x, w, bias=b, residual=r, norm_weight=n),
            (x, w, bias, residual, weight),
        ),
        "all_gather_gemm": (lambda x, w: st.all_gather_gemm(x, [w], rows=m), (shard, w)),
        "all_gather_gemm, gathered": (
            lambda x, w, v: st.all_gather_gemm(x, [w, v], rows=m, return_gathered=True),
            (shard, w, new(INNER, K)),
        ),
        "all_to_all_gemm": (lambda x, w: st.all_to_all_gemm(x, w, splits=splits), (x, w)),
        "gemm_all_to_all": (lambda x, w: st.gemm_all_to_all(x, w, splits=splits), (x, w)),
        "attention_reduce_scatter": (
            lambda q, k, v, w: st.attention_reduce_scatter(q, k, v, w, causal=True),
            [*(torch.randn(m, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (4, 2, 2)), new(N, 256)],
        ),
        "ulysses_attention": (
            lambda q, k, v: st.ulysses_attention(q, k, v, causal=True, rows=m),
            [torch.randn(mine, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (8, 4, 4)],
        ),
        "ring_attention": (
            lambda q, k, v: st.ring_attention(q, k, v, causal=True, rows=m),
            [torch.randn(mine, heads, 64, device="cuda").to(dtype).requires_grad_() for heads in (6, 3, 3)],
        ),
        "ring_attention, zigzag": (
            lambda q, k, v: st.ring_attention(q, k, v, causal=True, zigzag=True, rows=m),
            [
                torch.randn(shapes.own_rows(m, group, True), heads, 128, device="cuda").to(dtype).requires_grad_()
                for heads in (4, 2, 2)
            ],
        ),
        "mlp": (
            lambda x, u, d: st.mlp(x, u, d, activation="relu", rows=m),
            (shard, new(INNER, K), new(N, INNER)),
        ),
        "moe": experts(max(m - 3 * group.rank, 0), dtype),
    }


def experts(tokens, dtype):
    """moe with four experts a rank, most rows for few of them, and its leaves."""
    import torch
    from shingle import torch as st

    count = 4 * world_size()
    share = (1 / torch.arange(1.0, count + 1)).expand(max(tokens, 1), -1)
    ids = torch.multinomial(share, 2, replacement=True)[:tokens].cuda()
    sizes = (tokens, K), (4, 2 * INNER, K), (4, N, INNER)
    leaves = [integers(*shape, dtype=dtype).requires_grad_() for shape in sizes]
    weights = torch.rand(tokens, 2, device="cuda").requires_grad_()
    return lambda x, up, down, weights: st.moe(x, up, down, ids, weights), (*leaves, weights)


def outcome(call, leaves, overlapped, backward):
    """Results of a call, and gradients of its leaves."""
    import torch
    from shingle.torch.choices import LIBRARY, PREDICTED
    from shingle.torch.warming import forced

    for leaf in leaves:
        leaf.grad = None
    with forced(PREDICTED if overlapped else LIBRARY), torch.set_grad_enabled(backward):
        outs = torch.utils._pytree.tree_leaves(call(*leaves))
        if backward:
            sum(
                (out.float() * (1 + torch.arange(out.numel(), device=out.device).view(out.shape) % 3)).sum()
                for out in outs
            ).backward()
    return [out.detach() for out in outs] + [leaf.grad for leaf in leaves if backward]


def compare(got, expected, dtype, what):
    """Relative Frobenius norm: roundings differ in order of sums only."""
    import torch

    bound = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    for index, (g, e) in enumerate(zip(got, expected, strict=True)):
        assert g is not None and g.shape == e.shape and g.dtype == e.dtype, (what, index)
        error = ((g.double() - e.double()).norm() / e.double().norm().clamp_min(1e-30)).item() if e.numel() else 0
        assert error <= bound, f"{what}, output {index}: off by {error:.2e}, bound {bound:.0e}"


def check_ops(dtype, rows, backward=False):
    for m in rows:
        for name, (call, leaves) in calls(m, dtype).items():
            expected = outcome(call, leaves, False, backward)
            for _ in range(2):
                compare(outcome(call, leaves, True, backward), expected, dtype, f"{name} of {m} rows")


def forward_bf16():
    import torch

    check_ops(torch.bfloat16, ROWS)


def forward_f16():
    import torch

    check_ops(torch.float16, (7, 1024))


def forward_f32():
    import torch

    check_ops(torch.float32, (7, 1024))


def backward_bf16():
    import torch

    check_ops(torch.bfloat16, (7, 257, 1024), backward=True)


def attention_choices():
    """Forward and backward of ring_attention, each by a mechanism or by c10d, and both in a CUDA graph."""
    import torch
    from shingle import torch as st
    from shingle.torch.choices import LIBRARY, Shape
    from shingle.torch.shapes import backward_takes_lse

    dtype, (call, leaves) = torch.bfloat16, calls(1024, torch.bfloat16)["ring_attention, zigzag"]
    forward = Shape("allgather+attention", 512, 512, "bf16", world_size(), attention=(4, 2, 128, True), zigzag=True)
    backward = forward._replace(op="attention-backward")
    counted = "overlapped.attention-backward"
    served = backward_takes_lse(leaves[0], 128)
    expected = outcome(call, leaves, False, True)
    for ways in [(a, b) for a in (LIBRARY, "ring") for b in (LIBRARY, "ring")]:
        for shape, way in zip((forward, backward), ways):
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
    for shape in (forward, backward):
        for captured in (False, True):
            del st.table.rows[shape._replace(captured=captured).key]
    return None if served else "this cuDNN or GPU has no backward by the log-sum-exp"


def world_size():
    import torch.distributed as dist

    return dist.get_world_size()


def grown(call, leaves):
    """Result and gradients of a call by what the table says, with the weights of outcome()."""
    import torch

    out = call(*leaves)
    weights = (1 + torch.arange(out.numel(), device=out.device).view(out.shape) % 3).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, weights)]


def experts_choices():
    """moe and its gradients by each mechanism, all or some, and after warmup. A capture is refused."""
    import torch
    from shingle import errors
    from shingle import torch as st
    from shingle.torch.choices import LIBRARY
    from shingle.torch.warming import CANDIDATES, forced

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


def scatter_gradients():
    """Backward of all_gather_gemm, also in a graph and beside calls of the context: the bits of separate ops."""
    import torch
    import torch.distributed as dist
    from shingle import torch as st
    from shingle.torch.choices import LIBRARY, PREDICTED
    from shingle.torch.warming import forced

    dtype, group, ops = torch.bfloat16, dist.group.WORLD.group_name, torch.ops.shingle
    for rows in (7, 1024):
        ws = [integers(N, K, dtype=dtype), integers(INNER, K, dtype=dtype)]
        grads = [integers(rows * dist.get_world_size(), w.shape[0], dtype=dtype) for w in ws]
        x = integers(rows, K, dtype=dtype)

        def step(x=x, ws=ws, grads=grads):
            before = st.gemm_reduce_scatter(grads[0], ws[0].t())
            dx, dws = ops.scatter_gradients(grads, x, ws, group)
            return [before, dx, *dws, st.gemm_all_reduce(grads[0], dws[0].t())]

        with forced(PREDICTED):
            outs, graph = step(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                captured = step()
        for _ in range(3):
            graph.replay()
        with forced(LIBRARY):
            gathered = ops.all_gather(x, group)
            expected = [st.gemm_reduce_scatter(torch.cat(grads, 1), torch.cat(ws).t())]
            expected += [grad.t() @ gathered for grad in grads]
        for got in (outs, captured):
            assert all(torch.equal(g, e) for g, e in zip(got[1:4], expected, strict=True)), f"{rows} rows"
        torch.cuda.synchronize()
        graph.reset()


def strides():
    """Rows with gaps, a transposed weight and a matrix that begins at an odd address."""
    import torch
    from shingle import torch as st

    wide, w = integers(300, 2 * K + 1, dtype=torch.bfloat16), integers(N, K, dtype=torch.bfloat16)
    for x in (wide[:, :K], wide[:, 1 : K + 1], wide[:, : 2 * K : 2]):
        for weight in (w, w.t().contiguous().t()):
            expected = outcome(st.gemm_all_reduce, (x, weight), False, False)
            compare(outcome(st.gemm_all_reduce, (x, weight), True, False), expected, torch.bfloat16, "strides")


def side_stream():
    """Calls on a stream of the program. The next call on the default stream is ordered after it by an event."""
    import torch

    call, leaves = calls(512, torch.bfloat16)["gemm_reduce_scatter"]
    expected, stream = outcome(call, leaves, False, True), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = outcome(call, leaves, True, True)
    torch.cuda.current_stream().wait_stream(stream)
    compare(got, expected, torch.bfloat16, "on a side stream")


def two_groups():
    """Two contexts, whose calls one stream orders."""
    import torch
    import torch.distributed as dist
    from shingle import torch as st

    other, x, w = dist.new_group(), integers(512, K, dtype=torch.bfloat16), integers(N, K, dtype=torch.bfloat16)
    for group in (None, other, None):

        def call(x, w, group=group):
            return st.gemm_all_reduce(x, w, group)

        compare(outcome(call, (x, w), True, False), outcome(call, (x, w), False, False), torch.bfloat16, "groups")


def cuda_graph():
    """Calls of two sizes in a graph, replayed on other inputs. Before warmup a capture is refused."""
    import torch
    from shingle import errors
    from shingle import torch as st
    from shingle.torch.choices import LIBRARY, PREDICTED
    from shingle.torch.warming import forced

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
    import torch
    from shingle.torch import native
    from shingle.torch.choices import LIBRARY, PREDICTED
    from shingle.torch.warming import forced

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


def compiled_step(mode):
    import torch
    from shingle import torch as st

    def step(x, up, down):
        (hidden,) = st.all_gather_gemm(x, [up])
        return st.gemm_reduce_scatter(torch.relu(hidden), down)

    up, down = integers(INNER, K, dtype=torch.bfloat16), integers(N, INNER, dtype=torch.bfloat16)
    for weight in (up, down):
        weight.requires_grad_()
    function = torch.compile(step, fullgraph=True, dynamic=mode is None, mode=mode)
    for rows in (64, 96) if mode is None else (64, 64, 64, 64):
        x = integers(rows, K, dtype=torch.bfloat16).requires_grad_()
        outcome(step, (x, up, down), True, True)  # declares the operators of forward and backward
        expected = outcome(step, (x, up, down), False, True)
        got = [t.clone() for t in outcome(function, (x, up, down), True, True)]
        compare(got, expected, torch.bfloat16, f"compiled, {rows} rows")


def compiled():
    compiled_step(None)


def compiled_with_graphs():
    compiled_step("reduce-overhead")


def patched_symm_mem():
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory  # noqa: F401  defines symm_mem::fused_*
    from shingle import torch as st
    from shingle.torch.choices import LIBRARY, PREDICTED
    from shingle.torch.warming import forced

    group, dtype, rows = dist.group.WORLD.group_name, torch.bfloat16, 64
    x, w = integers(rows * dist.get_world_size(), K, dtype=dtype), integers(N, K, dtype=dtype)
    shard = integers(rows, K, dtype=dtype)
    with st.patch("symm_mem") as patched, forced(PREDICTED):
        got = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w.t(), "sum", 0, group)
        _, (gathered,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [w.t()], 0, group, return_A=False)
        assert patched.replaced == 2, patched.replaced
    with forced(LIBRARY):
        compare([got, gathered], [st.gemm_reduce_scatter(x, w), st.all_gather_gemm(shard, [w])[0]], dtype, "symm_mem")


def patched_fp8():
    """The fp8 ops, with all kinds of scales, also in a graph, against products in fp32."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory  # noqa: F401  defines symm_mem::fused_*
    from shingle import torch as st

    if torch.cuda.get_device_capability() < (8, 9):
        return "this GPU has no fp8"
    group, rank, ranks = dist.group.WORLD.group_name, dist.get_rank(), dist.get_world_size()
    fp8, bf16, own = torch.float8_e4m3fn, torch.bfloat16, 90  # slices of scales are not aligned

    def scales(rows, seed=None):
        return 2.0 ** integers(rows, 1, dtype=torch.float32, seed=seed)

    shard, x = integers(own, K, dtype=fp8), integers(own * ranks, K, dtype=fp8)
    b, bias = integers(N, K, dtype=fp8, seed=5).t(), integers(N, dtype=bf16, seed=6)
    one, all_rows = torch.ones((), device="cuda"), scales(own * ranks, seed=7)
    own_rows, columns = all_rows[own * rank :][:own], scales(N, seed=8).t()
    kinds = [(one, one, one), (own_rows, all_rows, columns), (all_rows, all_rows, columns)]

    def fused():
        outs = []
        for a_scale, x_scale, b_scale in kinds:
            gathered, (out,) = torch.ops.symm_mem.fused_all_gather_scaled_matmul(
                shard, [b], a_scale, [b_scale], 0, group, [bias], [None], [bf16], [True]
            )
            summed = torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
                x, b, x_scale, b_scale, "sum", 0, 0, group, [own * ranks, N], bias, None, bf16, True
            )
            outs += [gathered, out, summed]
        return outs

    def dense():
        outs, rows = [], torch.empty(own * ranks, K, device="cuda")
        dist.all_gather_into_tensor(rows, shard.float())
        for _, x_scale, b_scale in kinds:
            weight, mine = b.float() * b_scale, torch.empty(own, N, device="cuda")
            dist.reduce_scatter_tensor(mine, x.float() * x_scale @ weight + bias.float())
            outs += [rows.to(fp8), (rows * x_scale @ weight + bias.float()).to(bf16), mine.to(bf16)]
        return outs

    with st.patch("symm_mem"):
        compare(fused(), dense(), bf16, "fp8")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outs = fused()
        for _ in range(3):
            shard.copy_(integers(own, K, dtype=fp8))
            x.copy_(integers(own * ranks, K, dtype=fp8))
            graph.replay()
            compare(outs, dense(), bf16, "fp8, a replay")
        torch.cuda.synchronize()
        graph.reset()


def warmup():
    """Measures the mechanisms of each operator. Calls by all of them are right, also in a graph."""
    import torch
    import torch.distributed as dist
    from shingle import torch as st
    from shingle.torch.choices import LIBRARY
    from shingle.torch.warming import CANDIDATES, forced

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


CASES = {
    case.__name__: case
    for case in (forward_bf16, forward_f16, forward_f32, backward_bf16, attention_choices, experts_choices,
                 scatter_gradients, strides, side_stream, two_groups, cuda_graph, repeated, patched_symm_mem,
                 patched_fp8, compiled, warmup, compiled_with_graphs)
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="processes; default: one for each GPU, at least 2")
    parser.add_argument("--only", default="", help=f"cases, joined by commas, of {', '.join(CASES)}")
    parser.add_argument("--deadline", type=float, default=540, help="seconds for all cases together")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    for name in only:
        if name not in CASES:
            parser.error(f"--only {name} is none of {', '.join(CASES)}")
    return run_cases(only) if args.as_rank else start_ranks(args)


if __name__ == "__main__":
    sys.exit(main())
