"""What the ops take: strides, dimensions, groups; and what they refuse."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from comparisons import INNER, K, N, sizes  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import sequential  # noqa: E402


def strides_and_dimensions_case():
    rank, ranks = sizes()
    x, w = torch.randn(4 * ranks, 3, 2 * K)[..., ::2], torch.randn(K, N).t()
    flat, dense = x.reshape(-1, K), w.contiguous()
    rows = st.gemm_reduce_scatter(flat.contiguous(), dense)
    torch.testing.assert_close(st.gemm_reduce_scatter(flat, w), rows)
    torch.testing.assert_close(st.gemm_reduce_scatter(x, w), rows.view(4, 3, N))
    torch.testing.assert_close(st.gemm_all_reduce(x, w).flatten(0, 1), st.gemm_all_reduce(flat.contiguous(), dense))
    (out,) = st.all_gather_gemm(x, [w])
    assert out.shape == (4 * ranks * ranks, 3, N)
    torch.testing.assert_close(out.flatten(0, 1), st.all_gather_gemm(flat.contiguous(), [dense])[0])
    for at in (0, 1):
        batch = torch.randn(2 * ranks, 3 * ranks, K)
        moved = batch.movedim(at, 0).contiguous()
        expected = st.gemm_reduce_scatter(moved, w).movedim(0, at)
        torch.testing.assert_close(st.gemm_reduce_scatter(batch, w, dim=at), expected)
        kept, (out,) = st.all_gather_gemm(batch, [w], dim=at, return_gathered=True)
        torch.testing.assert_close(kept, st.all_gather_gemm(moved, [w], return_gathered=True)[0].movedim(0, at))
        torch.testing.assert_close(out, kept @ w.t())
    with pytest.raises(errors.InvalidArgument, match="dim = 2 must be"):
        st.gemm_reduce_scatter(batch, w, dim=2)
    up = torch.randn(2 * INNER, K)
    assert st.mlp(x, up, torch.randn(N, INNER)).shape == (4 * ranks, 3, N)
    activated = st.gemm_reduce_scatter(flat, up, bias=torch.ones(2 * INNER), activation="swiglu")
    torch.testing.assert_close(activated, sequential.activate(st.gemm_reduce_scatter(flat, up) + 1, "swiglu"))


def test_strides_and_dimensions():
    on_ranks(2, strides_and_dimensions_case)


def bad_input_case():
    ranks = dist.get_world_size()
    x, w = torch.randn(4, K), torch.randn(N, K)
    q, wo = torch.randn(4, 2 * ranks, K), torch.randn(N, 2 * ranks * K)
    wrong = [
        ("group = 'nose'", lambda: st.gemm_all_reduce(x, w, "nose")),
        ("group = 3", lambda: st.gemm_all_reduce(x, w, 3)),
        ("w.shape", lambda: st.gemm_all_reduce(x, w.t())),
        ("w.dtype", lambda: st.gemm_reduce_scatter(x, w.double())),
        ("w.device", lambda: st.gemm_reduce_scatter(x, w.to("meta"))),
        ("x.dtype", lambda: st.gemm_reduce_scatter(x.int(), w.int())),
        ("bias.shape", lambda: st.gemm_reduce_scatter(x, w, bias=torch.randn(N + 1))),
        ("bias.dtype", lambda: st.gemm_all_reduce(x, w, bias=torch.randn(N).half())),
        ("residual.shape", lambda: st.gemm_all_reduce(x, w, residual=torch.randn(3, N), norm_weight=torch.randn(N))),
        ("norm_weight.shape", lambda: st.gemm_all_reduce(x, w, residual=torch.randn(4, N), norm_weight=torch.randn(1))),
        ("activation = 'tanh'", lambda: st.gemm_reduce_scatter(x, w, activation="tanh")),
        ("dimension 0", lambda: st.gemm_reduce_scatter(torch.randn(2 * ranks + 1, 2, K), w)),
        ("must be even", lambda: st.mlp(x, torch.randn(3, K), w)),
        ("ws is empty", lambda: st.all_gather_gemm(x, [])),
        (r"ws\[1\].shape", lambda: st.all_gather_gemm(x, [w, torch.randn(N, K + 1)])),
        ("of rows = 99", lambda: st.all_gather_gemm(x, [w], rows=99)),
        ("splits must be square", lambda: st.all_to_all_gemm(x, w, splits=[[1, 2, 3]])),
        (r"splits\[0\]\[0\] = -4 is negative", lambda: st.all_to_all_gemm(x, w, splits=[[-4] + [4] * (ranks - 1)] * ranks)),
        (r"splits\[\d\] sends", lambda: st.all_to_all_gemm(x, w, splits=[[9] * ranks] * ranks)),
        (r"expected \[tokens, heads", lambda: st.attention_reduce_scatter(x, x, x, w)),
        ("w.shape", lambda: st.attention_reduce_scatter(q, q, q, torch.randn(N, K + 1))),
        (r"k.shape = \(4, 8\)", lambda: st.ulysses_attention(q, x, x)),
        ("v.shape", lambda: st.ulysses_attention(q, q, q[:, :1])),
        ("k has 3 tokens", lambda: st.ulysses_attention(q, q[:3], q[:3])),
        ("ranks must divide", lambda: st.ulysses_attention(q[:, :1], q[:, :1], q[:, :1])),
        ("k's must divide q's", lambda: st.ulysses_attention(q[:, :2], q, q)),
        ("other batch or head", lambda: st.ulysses_attention(q, q[..., :4], q)),
        ("torch.int32", lambda: st.ulysses_attention(q.int(), q.int(), q.int())),
        ("of rows = 99", lambda: st.ulysses_attention(q, q, q, rows=99)),
        ("k's must divide q's", lambda: st.ring_attention(q[:, :2], q, q)),
        ("in a zigzag", lambda: st.ring_attention(q[:3], q[:3], q[:3], zigzag=True)),
        ("of rows = 99", lambda: st.ring_attention(q, q, q, rows=99)),
        (rf"= \[0, 3\] must ascend from 0 to {4 * ranks}", lambda: st.ring_attention(q, q, q, cu_seqlens=[0, 3])),
        ("must ascend from 0 to 4", lambda: st.attention_reduce_scatter(q, q, q, wo, cu_seqlens=[0, 3, 2, 4])),
        ("= \\[\\] must ascend", lambda: st.ulysses_attention(q, q, q, cu_seqlens=[])),
        ("cu_seqlens is torch.float32", lambda: st.ring_attention(q, q, q, cu_seqlens=torch.ones(2))),
        ("expected whole numbers", lambda: st.ring_attention(q, q, q, cu_seqlens=[0, 2.5, 4 * ranks])),
        ("expected whole numbers", lambda: st.ring_attention(q, q, q, cu_seqlens="x")),
        (r"of \(1, 2\) on cpu", lambda: st.ulysses_attention(q, q, q, cu_seqlens=torch.tensor([[0, 8]]))),
        ("down.shape", lambda: st.mlp(x, torch.randn(6, K), torch.randn(N, 4))),
    ]  # fmt: skip
    for match, call in wrong:
        with pytest.raises(errors.InvalidArgument, match=match):
            call()
    with pytest.raises(errors.Unsupported, match="activation = 'relu' has no gradient"):
        st.gemm_reduce_scatter(x.requires_grad_(), w, activation="relu")
    with pytest.raises(TypeError, match="no setting 'nose'"):
        st.configure(nose=1)


def test_bad_input_names_the_argument():
    on_ranks(2, bad_input_case)


def subgroup_case():
    rank, ranks = sizes()
    group = dist.new_group([0, 2])
    if rank == 1:
        return
    x, w = torch.full((4, K), rank + 1.0), torch.ones(N, K)
    torch.testing.assert_close(st.gemm_all_reduce(x, w, group), torch.full((4, N), 4.0 * K))
    torch.testing.assert_close(st.gemm_reduce_scatter(x, w, group.group_name), torch.full((2, N), 4.0 * K))


def test_a_group_of_some_ranks():
    on_ranks(3, subgroup_case)


def destroyed_group_case():
    group = dist.new_group()
    x = torch.randn(4, 2, K, requires_grad=True)
    st.ring_attention(x, x, x, group, causal=True).sum().backward()
    reference = weakref.ref(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert reference() is None, "its threads run on, and may abort the process when Python ends"


def test_a_destroyed_group_ends():
    on_ranks(2, destroyed_group_case)
