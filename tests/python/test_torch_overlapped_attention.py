"""The CUDA kernels of ops with attention, without a GPU; their choices, and packed sequences."""

import pathlib
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from host_contexts import K, N, close, host_ranks, results  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle.torch import (  # noqa: E402
    configure, contexts, functional, overlapped, overlapped_attention, sequential, shapes, warming,
)  # fmt: skip
from shingle.torch.choices import LIBRARY, PREDICTED, Shape, table  # noqa: E402
from shingle.torch.groups import Group  # noqa: E402

FORWARD = Shape("allgather+attention", 2 * K, 2 * K, "f32", 1, attention=(4, 2, K // 2, True))
WITH_LSE, BACKWARD = FORWARD._replace(returns_lse=True), FORWARD._replace(op="attention-backward")
counts = overlapped.counts


def kernels_case(cu_seqlens):
    """Results equal those by c10d and PyTorch's attention, whatever the dtype and the strides."""
    packed = None if cu_seqlens is None else torch.tensor(cu_seqlens, dtype=torch.int32)
    counts.clear()
    with host_ranks():
        configure(overlap_packed=True)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):

            def random(*shape, dtype=dtype):
                return torch.randn(shape).to(dtype)

            wide = random(5, 4 * K)
            for q in (wide[:, : 2 * K].contiguous(), wide[:, : 2 * K], wide[:, ::2]):
                for causal in (False, True):
                    k, v = random(5, K), random(5, K)
                    for to in (random(N, 2 * K), random(2 * K, N).t()):
                        close(*results("attention_reduce_scatter", q, k, v, to, "0", K // 2, causal, packed))
                    close(*results("ulysses_attention", q, k, v, "0", K // 2, causal, 5, packed))
                    for zigzag in (False, True):
                        ring = q, k, v, "0", K // 2, causal, zigzag, 5, packed
                        close(*results("ring_attention", *ring))
                        out, lse = overlapped_attention.ring_attention_with_lse(*ring)
                        expected = sequential.attend_with_lse(*ring)
                        close((out, lse), expected)
                        assert lse.dtype == torch.float32
                        torch.testing.assert_close(lse, expected[1], atol=1e-5, rtol=1e-5)
                        for grad in (random(5, 2 * K), random(5, 4 * K)[:, ::2]):
                            close(*results("ring_gradients", grad, q, k, v, out, lse, *ring[3:]))
        for op in ("attention+reducescatter", "ulysses-attention", "allgather+attention", "attention-backward"):
            assert counts["overlapped." + op] > 0 and not counts["sequential." + op]


@pytest.mark.parametrize("cu_seqlens", [None, [0, 5], [0, 2, 5], [0, 1, 2, 2, 4, 5]])
def test_kernels_pass_what_the_context_expects(cu_seqlens):
    on_ranks(1, kernels_case, cu_seqlens)


def packed_choice_case():
    q, k, v = torch.randn(6, 2 * K), torch.randn(6, K), torch.randn(6, K)
    made = []

    def call(cu_seqlens):
        counts.clear()
        made.append(overlapped_attention.ring_attention(q, k, v, "0", K // 2, True, False, 6, cu_seqlens))
        return set(counts)

    two = torch.tensor([0, 2, 6])
    with host_ranks():
        assert call(None) == call(torch.tensor([0, 6])) == {"overlapped.allgather+attention"}
        assert call(two) == {"sequential.allgather+attention"}, "lengths that do not repeat would cost a plan each"
        configure(overlap_packed=True)
        assert call(two) == {"overlapped.allgather+attention"}
        torch.testing.assert_close(made[-1], made[-2])
        with warming.forced(LIBRARY):
            assert call(two) == {"sequential.allgather+attention"}
        configure(overlap_packed=False)
        with warming.forced(PREDICTED):
            assert call(two) == {"overlapped.allgather+attention"}


def test_packed_sequences_are_overlapped_on_request():
    on_ranks(1, packed_choice_case)


def choice_case():
    """Forward keeps a log-sum-exp if backward may be overlapped; without one backward attends again."""
    q, k, v, grad = (torch.randn(5, columns) for columns in (2 * K, K, K, 2 * K))
    ring = q, k, v, "0", K // 2, True, False, 5
    _, expected = sequential.attend_with_lse(*ring)
    gradients = sequential.ring_gradients(grad, q, k, v, None, None, *ring[3:])
    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        captured = BACKWARD._replace(captured=True)
        for overlaps in ({}, {FORWARD}, {WITH_LSE}, {BACKWARD}, {captured}, {WITH_LSE, BACKWARD}, {FORWARD, captured}):
            by_table = {of: [(64, "ring" if of in overlaps else LIBRARY)] for shape in (FORWARD, WITH_LSE, BACKWARD)
                        for of in (shape, shape._replace(captured=True))}  # fmt: skip
            patch.setattr(table, "rows", by_table)
            counts.clear()
            out, lse = overlapped_attention.ring_attention_with_lse(*ring)
            forward = FORWARD if not {BACKWARD, captured} & set(overlaps) else WITH_LSE
            if forward == WITH_LSE:
                torch.testing.assert_close(lse, expected)
            else:
                assert lse.isnan().all()
            close(overlapped_attention.ring_gradients(grad, q, k, v, out, lse, *ring[3:]), gradients)
            close(overlapped_attention.ring_gradients(grad, q, k, v, None, None, *ring[3:]), gradients)
            for shape in (forward, BACKWARD):
                way = "overlapped." if shape in overlaps else "sequential."
                assert counts == counts | {way + shape.op: 1}, (overlaps, counts)


def test_choices_of_attention_agree_on_the_log_sum_exp():
    on_ranks(1, choice_case)


def warmup_case():
    """warmup measures the forward of a backward with its log-sum-exp, and also without one."""
    q, k, v = torch.randn(5, 2 * K), torch.randn(5, K), torch.randn(5, K)
    ring, seen = (q, k, v, "0", K // 2, True, False, 5), []

    def measured(group, shape, sizes, device):
        seen.append(shape.key)
        choice = LIBRARY if shape.op == "attention-backward" else "ring"
        return {m: {LIBRARY: 10, choice: 5} for m in sizes}

    def step():
        out, lse = overlapped_attention.ring_attention_with_lse(*ring)
        overlapped_attention.ring_gradients(out, q, k, v, out, lse, *ring[3:])

    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(warming, "measure", measured)
        patch.setattr(table, "rows", {})
        warming.warmup(step)
        assert {shape for shape in seen if not shape.captured} == {FORWARD, WITH_LSE, BACKWARD}
        (made,) = contexts._contexts.values()
        known = set(made.calls)
        step()  # now by the forward without a log-sum-exp, which warmup has declared
        assert set(made.calls) == known


def test_warmup_measures_the_forward_of_a_backward():
    on_ranks(1, warmup_case)


def measured_kernel_case():
    """A forward with the log-sum-exp is measured with it, by the libraries too."""
    with host_ranks():
        group = overlapped.find_group("0")
        q, k, v = torch.randn(5, 2 * K), torch.randn(5, K), torch.randn(5, K)
        given = q, k, v, group.name, K // 2, True, False, 5
        for choice in (LIBRARY, PREDICTED):
            with warming.forced(choice):
                _, lse = warming.kernel_of(WITH_LSE)(*given)
                assert lse.isfinite().all()
                assert isinstance(warming.kernel_of(FORWARD)(*given), torch.Tensor)


def test_the_log_sum_exp_is_measured():
    on_ranks(1, measured_kernel_case)


def test_rule_of_the_backward_of_attention():
    """What decides on CUDA whether forward keeps a log-sum-exp."""

    class Cuda:
        is_cuda, device, shape = True, 0, (4, 256)

        def __init__(self, dtype):
            self.dtype = dtype

    def takes(dtype, head_dim, capability=(9, 0), cudnn=shapes.LEAST_CUDNN):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
            patch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
            return shapes.backward_takes_lse(Cuda(dtype), head_dim)

    for dtype in (torch.bfloat16, torch.float16):
        assert takes(dtype, 64) and takes(dtype, 256) and takes(dtype, 128, (10, 0))
        assert not takes(dtype, 136, (8, 0)) and not takes(dtype, 100) and not takes(dtype, 264)
        assert not takes(dtype, 64, cudnn=shapes.LEAST_CUDNN - 1) and not takes(dtype, 64, cudnn=None)
    assert not takes(torch.float32, 64)
    assert not shapes.backward_takes_lse(torch.zeros(4, 256), 64), "on CPU backward attends again"
    source = pathlib.Path(__file__).parents[2] / "src/cuda/commands/attention.cpp"
    assert f"least_backward_version = {shapes.LEAST_CUDNN};" in source.read_text()


def test_a_huge_backward_is_left_to_pytorch():
    """Its workspace is bounded by the GPU's memory."""

    class Cuda:
        is_cuda, device = True, 0

        def __init__(self, heads):
            self.dtype, self.shape = torch.bfloat16, (16, heads * 128)

    group = Group("0", None, 0, 2)

    def served(tokens, zigzag=True, heads=32, kv_heads=8, lengths=None, cudnn=91501):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(total_memory=128e9))
            patch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
            shape = overlapped_attention.backward_of(
                Cuda(heads), Cuda(kv_heads), group, 128, True, zigzag, tokens, lengths
            )
            return shape.dtype is not None

    # 2 bytes for a quarter of the queries, all keys, and 4 heads that share keys: 8.6 GB of 64K tokens
    assert served(65536) and not served(131072)
    assert served(131072, heads=8) and not served(131072, heads=8, zigzag=False)
    assert served(131072, cudnn=92500)
    assert served(131072, lengths=(32768,) * 4) and not served(131072, lengths=(131071, 1))


def test_a_capture_takes_no_lengths_of_a_gpu(monkeypatch):
    class OnGpu(torch.Tensor):
        is_cuda = True

    ends = torch.tensor([0, 4])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert functional.on_host(ends.as_subclass(OnGpu)).tolist() == [0, 4]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert functional.on_host(ends) is ends and functional.on_host([0, 4]).dtype == torch.int32
    with pytest.raises(errors.InvalidArgument, match="which a CUDA graph capture cannot wait for; pass a list"):
        functional.on_host(ends.as_subclass(OnGpu))
