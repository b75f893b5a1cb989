"""fp8 ops of patch("symm_mem") on CPU, against dense products in fp32."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as collectives  # noqa: E402
import torch.distributed._symmetric_memory as symmetric_memory  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import scaled  # noqa: E402

FP8, BF16, K, N = torch.float8_e4m3fn, torch.bfloat16, 32, 16
ops = torch.ops.symm_mem


def dequantised(rows, scale, weight, out):
    """scaled.multiply with row scales, which CPUs lack."""
    result = (rows.float() * scale) @ (weight.matrix.float() * weight.scale)
    if weight.bias is not None:
        result += weight.bias.float()
    if weight.result_scale is not None:
        result *= weight.result_scale
    out.copy_(result)


@contextlib.contextmanager
def patched():
    """The patch on CPU. Yields the rows of each product."""
    with pytest.MonkeyPatch.context() as change, st.patch("symm_mem", device="cpu"):
        products, multiply = [], scaled.multiply

        def by_scale(rows, scale, weight, out):
            assert scale.data_ptr() % scaled.ALIGNMENT == 0 and rows.is_contiguous() and out.is_contiguous()
            products.append(rows.shape[0])
            tensor_wise = scale.numel() == 1 and weight.scale.numel() == 1
            (multiply if tensor_wise else dequantised)(rows, scale, weight, out)

        change.setattr(scaled, "multiply", by_scale)
        yield products


def on_all(*shape, seed):
    """Random numbers in [0.5, 1.5), equal on all ranks."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def own_rows(*shape):
    """Random fp8 of this rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 + dist.get_rank())).to(FP8)


def columns(n, seed=1):
    """A weight [K, n] of fp8, column-major, equal on all ranks."""
    return torch.randn(n, K, generator=torch.Generator().manual_seed(seed)).to(FP8).t()


def whole(part, dim):
    """The parts of all ranks, in fp32."""
    parts = [torch.empty(part.shape) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part.float().contiguous())
    return torch.cat(parts, dim)


def same_layout(got, shape, front):
    """got has this shape, and is contiguous with dimension `front` in front."""
    assert list(got.shape) == list(shape) and got.movedim(front, 0).is_contiguous()


def gather_scales(mode, shape, dim, seed):
    """(A_scale of this rank, scales of all rows, B_scale of n columns as function of n)."""
    if mode == "tensor":
        return torch.tensor(0.25), torch.tensor(0.25), lambda n: torch.tensor([[2.0]])
    total = list(shape[:-1]) + [1]
    total[dim] *= dist.get_world_size()
    everything = on_all(*total, seed=seed)
    own = everything if mode == "replicated" else everything.chunk(dist.get_world_size(), dim)[dist.get_rank()]
    return own, everything, lambda n: on_all(1, n, seed=n)


def check_gather(shape, dim, mode):
    ranks, group = dist.get_world_size(), dist.group.WORLD.group_name
    a, sizes, dtypes = own_rows(*shape), (N, 2 * N, 3 * N), [BF16, None, torch.float32]
    a_scale, all_scales, b_scale = gather_scales(mode, shape, dim, seed=7)
    bs, b_scales = [columns(n) for n in sizes], [b_scale(n) for n in sizes]
    biases, result_scales = [on_all(N, seed=3).to(BF16), None, None], [None, torch.tensor(0.5), None]
    if mode == "tensor":
        result_scales[1] = None  # CPUs ignore it
    with patched() as products:
        gathered, outs = ops.fused_all_gather_scaled_matmul(
            a, bs, a_scale, b_scales, dim, group, biases, result_scales, dtypes, [False, True, False]
        )
    expected = whole(a, dim)
    assert gathered.dtype == FP8 and torch.equal(gathered.float(), expected)
    same_layout(gathered, expected.shape, dim)
    for i, (out, b) in enumerate(zip(outs, bs, strict=True)):
        dense = (expected * all_scales) @ (b.float() * b_scales[i])
        dense = dense if biases[i] is None else dense + biases[i].float()
        dense = dense if result_scales[i] is None else dense * result_scales[i]
        assert out.dtype == (dtypes[i] or FP8)
        same_layout(out, dense.shape, dim)
        if out.dtype == FP8:
            torch.testing.assert_close(out.float(), dense.clamp(-448, 448).to(FP8).float(), rtol=0.13, atol=2**-9)
        else:
            torch.testing.assert_close(out, dense.to(out.dtype), rtol=1.6e-2, atol=1e-3)
    own = a.numel() // K
    assert products == ([own * ranks] * 3 if own else [])


def gather_cases():
    for mode in ("tensor", "sharded", "replicated"):
        for shape, dim in (((8, K), 0), ((7, K), 0), ((3, 2, K), 0), ((2, 5, K), 1), ((2, 3, 2, K), 2)):
            check_gather(shape, dim, mode)
    check_gather((1, K), 0, "sharded")  # scale and row of one element
    check_gather((0, K), 0, "tensor")


def strided_inputs_case():
    """Rows and scales with gaps, and scales of one column of a wider matrix."""
    group, rank, ranks = dist.group.WORLD.group_name, dist.get_rank(), dist.get_world_size()
    a, b = own_rows(6, 2 * K)[:, ::2], columns(N)
    scales = on_all(6 * ranks, 3, seed=5)[:, 1:2]
    own = scales[6 * rank : 6 * rank + 6]
    for a_scale in (own, own.t().contiguous().t(), scales):
        with patched():
            gathered, (out,) = ops.fused_all_gather_scaled_matmul(
                a, [b], a_scale, [on_all(1, N, seed=2)], 0, group, [None], [None], [torch.float32], [False]
            )
        assert torch.equal(gathered.float(), whole(a, 0))
        torch.testing.assert_close(out, (whole(a, 0) * scales) @ (b.float() * on_all(1, N, seed=2)))


def check_scatter(shape, output, dim, row_wise, op, dtype, with_bias=False):
    """shape: of A; output: of the product, or None as the shape of A says."""
    ranks, rank, group = dist.get_world_size(), dist.get_rank(), dist.group.WORLD.group_name
    a, b = own_rows(*shape), columns(N)
    a_scale = own_rows(*shape[:-1], 1).float().abs() + 0.5 if row_wise else torch.tensor([0.5])
    b_scale = on_all(1, N, seed=2) if row_wise else torch.tensor(0.25)
    bias = on_all(N, seed=3).to(BF16) if with_bias else None
    output = [*shape[:-1], N] if output is None else list(output)
    given, flat_dim = list(output), dim if len(output) == len(shape) else 0
    with patched() as products:
        got = ops.fused_scaled_matmul_reduce_scatter(
            a, b, a_scale, b_scale, op, dim, flat_dim, group, given, bias, None, dtype, True
        )
    assert given == output
    mine = (a.float() * a_scale) @ (b.float() * b_scale)
    mine = mine if bias is None else mine + bias.float()
    partial = mine.to(dtype or FP8).float().view(output)
    total = whole(partial.unsqueeze(0), 0).sum(0)
    expected = (total / ranks if op == "avg" else total).chunk(ranks, dim)[rank]
    assert got.dtype == (dtype or FP8)
    same_layout(got, expected.shape, 0)
    rounding = {BF16: ranks * 2**-7, torch.float32: 1e-5, torch.float16: ranks * 2**-9}
    slack = rounding.get(got.dtype, 0.13) * total.abs().max().item() if total.numel() else 0
    torch.testing.assert_close(got.float(), expected, rtol=0, atol=slack)
    assert products == ([a.numel() // K] if a.numel() else [])


def scatter_cases():
    ranks = dist.get_world_size()
    shapes = [
        ((4 * ranks, K), None, 0),
        ((3 * ranks, K), None, 0),
        ((ranks, K), None, 0),
        ((0, K), None, 0),
        ((2 * ranks, 3, K), None, 0),
        ((3, 2 * ranks, K), None, 1),
        ((3 * 2 * ranks, K), (3, 2 * ranks, N), 1),
        ((2 * ranks * 3, K), (2 * ranks, 3, N), 0),
        ((2, 3, 2 * ranks, K), None, 2),
    ]
    for row_wise in (True, False):
        for shape, output, dim in shapes:
            for op in ("sum", "avg"):
                check_scatter(shape, output, dim, row_wise, op, BF16, with_bias=op == "sum")
    for dtype in (torch.float32, torch.float16, None):
        for op in ("sum", "avg"):
            check_scatter((4 * ranks, K), None, 0, False, op, dtype)


def fallback_case():
    """On two ranks a sum has one rounding, so it has the bits of PyTorch's fallback."""
    group, scales = dist.group.WORLD.group_name, (torch.tensor(0.3), torch.tensor(0.7))
    for shape, output, dim in (((12, K), [12, N], 0), ((12, K), [3, 4, N], 1), ((3, 4, K), [3, 4, N], 1)):
        for op in ("sum", "avg"):
            args = own_rows(*shape), columns(N), *scales, op, dim, dim if len(shape) == 3 else 0, group, output
            expected = symmetric_memory._fused_scaled_matmul_reduce_scatter_fallback(*args, out_dtype=BF16)
            with patched():
                got = ops.fused_scaled_matmul_reduce_scatter(*args, out_dtype=BF16)
            torch.testing.assert_close(got, expected, rtol=0, atol=0, check_stride=True)


def dtypes_case():
    """The dispatcher passes dtypes of lists as numbers."""
    b, group, dtypes = columns(N), dist.group.WORLD.group_name, list(scaled.DTYPES.values())
    count, rows, scale = len(dtypes), own_rows(4, K), torch.ones(4, 1)
    with patched():
        _, outs = ops.fused_all_gather_scaled_matmul(
            rows, [b] * count, scale, [torch.ones(1, N)] * count, 0, group, [None] * count, [None] * count, dtypes,
            [False] * count,
        )  # fmt: skip
    assert [out.dtype for out in outs] == dtypes


def left_to_pytorch_case():
    """Many rows, and columns, are left to PyTorch; counters tell what was replaced."""
    a, b, one, group = own_rows(4, K), columns(N), torch.tensor(1.0), dist.group.WORLD.group_name
    ranks, before = dist.get_world_size(), st.counters()
    with pytest.MonkeyPatch.context() as change, st.patch("symm_mem", device="cpu") as replaced:
        for name in ("_fused_all_gather_scaled_matmul", "_fused_scaled_matmul_reduce_scatter"):
            answer = (a, [a]) if "gather" in name else a
            change.setattr(symmetric_memory, name, lambda *args, answer=answer: answer)

        def call(rows, dim):
            ops.fused_all_gather_scaled_matmul(
                own_rows(rows, K), [b], one, [one], dim, group, [None], [None], [BF16], [False]
            )
            x = own_rows(rows * ranks, K)
            ops.fused_scaled_matmul_reduce_scatter(
                x, b, one, one, "sum", dim, dim, group, [rows * ranks, N], out_dtype=BF16
            )

        change.setattr(scaled, "PIPELINED", 8 * ranks)
        for rows, dim in ((8, 0), (4, 1), (4, -1)):
            call(rows, dim)
        assert replaced.replaced == 0
        call(7, 0)
        assert replaced.replaced == 2
    counted = {name: n - before.get(name, 0) for name, n in st.counters().items() if n > before.get(name, 0)}
    assert counted == {
        "symm_mem.fused_all_gather_scaled_matmul": 1, "symm_mem.fused_scaled_matmul_reduce_scatter": 1
    }  # fmt: skip


def bad_input_case():
    group, one, ranks = dist.group.WORLD.group_name, torch.tensor(1.0), dist.get_world_size()
    a, b = own_rows(4 * ranks, K), columns(N)

    def gather(*, bs=(b,), a_scale=one, dim=0, biases=(None,), dtypes=(BF16,), name=group):
        ops.fused_all_gather_scaled_matmul(
            a, list(bs), a_scale, [one], dim, name, list(biases), [None], list(dtypes), [False]
        )

    def scatter(*, b=b, a_scale=one, dim=0, output=None, op="sum"):
        output = output or [4 * ranks, N]
        ops.fused_scaled_matmul_reduce_scatter(a, b, a_scale, one, op, dim, dim, group, output, out_dtype=BF16)

    wrong = [
        (gather, {"biases": ()}, "biases has 0 elements; expected 1"),
        (gather, {"bs": (b.t(),)}, r"Bs\[0\].shape"),
        (gather, {"a_scale": torch.ones(3, 1)}, "A_scale.shape"),
        (gather, {"a_scale": torch.ones(4 * ranks, 2)}, "A_scale.shape"),
        (gather, {"dim": 2}, "gather_dim = 2"),
        (gather, {"dtypes": (torch.int64,)}, "out_dtype = 4"),
        (gather, {"name": "none"}, "'none' is no process group"),
        (scatter, {"b": b.t()}, "B.shape"),
        (scatter, {"a_scale": torch.ones(4 * ranks)}, "A_scale.shape"),
        (scatter, {"dim": -3}, "orig_scatter_dim = -3"),
        (scatter, {"output": [2 * ranks, N]}, "as many rows as A"),
        (scatter, {"output": [1, 4 * ranks, N]}, "must be a multiple"),
    ]
    with patched():
        for call, changes, message in wrong:
            with pytest.raises(errors.InvalidArgument, match=message):
                call(**changes)
        with pytest.raises(ValueError, match="sum or avg"):
            scatter(op="max")


def gathered_product(shard, b, scale_a, scale_b):
    rows = collectives.all_gather_tensor(shard, 0, dist.group.WORLD)
    return torch._scaled_mm(rows, b, scale_a=scale_a, scale_b=scale_b, out_dtype=BF16)


def scattered_product(a, b, scale_a, scale_b):
    rows = torch._scaled_mm(a.flatten(0, -2), b, scale_a=scale_a, scale_b=scale_b, out_dtype=BF16)
    return collectives.reduce_scatter_tensor(rows.view(*a.shape[:-1], N), "sum", 1, dist.group.WORLD)


def compiled_case():
    """_micro_pipeline_tp matches, and the compiled code runs the patch's kernels."""
    import torch._inductor.config as inductor

    ranks, one, half = dist.get_world_size(), torch.tensor(1.0), torch.tensor(0.5)
    cases = [(gathered_product, own_rows(4, K)), (scattered_product, own_rows(3, 2 * ranks, K))]
    matched = []
    for function, a in cases:
        before = st.counters()
        with patched(), symmetric_memory._test_mode(), inductor.patch(
            _micro_pipeline_tp=True, force_disable_caches=True
        ):
            got = torch.compile(function, fullgraph=True)(a, columns(N), one, half)
        b = columns(N).float() * 0.5
        if function is gathered_product:
            expected = whole(a, 0) @ b
        else:
            partial = (a.float() @ b).to(BF16).float()
            expected = whole(partial.unsqueeze(0), 0).sum(0).chunk(ranks, 1)[dist.get_rank()]
        torch.testing.assert_close(got, expected.to(BF16), rtol=1.6e-2, atol=2e-2)
        matched += [name for name, n in st.counters().items() if n > before.get(name, 0) and "symm_mem" in name]
    return matched


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("case", [gather_cases, scatter_cases, strided_inputs_case, left_to_pytorch_case, bad_input_case])
def test_scaled(ranks, case):
    on_ranks(ranks, case)


def one_rank_case():
    check_gather((5, K), 0, "sharded")
    check_scatter((5, K), None, 0, True, "avg", BF16)


def test_one_rank():
    on_ranks(1, one_rank_case)


def test_two_ranks_have_the_bits_of_the_fallback():
    on_ranks(2, fallback_case)


def test_dtypes():
    on_ranks(2, dtypes_case)


def test_micro_pipeline_tp():
    if not dist.is_nccl_available():
        pytest.skip("_micro_pipeline_tp does not match without NCCL")
    for matched in on_ranks(2, compiled_case):
        assert matched == ["symm_mem.fused_all_gather_scaled_matmul", "symm_mem.fused_scaled_matmul_reduce_scatter"]
