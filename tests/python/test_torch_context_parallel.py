"""context_parallel against attention of the whole sequence, with gradients; what it takes and gives back."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402

BATCH, HEADS, HEAD_DIM = 2, 4, 8


def zigzag(x, dim):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    chunks = x.chunk(2 * ranks, dim)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]), dim)


def attention_case(causal, kv_heads):
    tokens = 4 * dist.get_world_size()
    q, k, v = (torch.randn(BATCH, heads, tokens, HEAD_DIM).double() for heads in (HEADS, kv_heads, kv_heads))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    options = {"is_causal": causal, "enable_gqa": kv_heads != HEADS}
    expected = F.scaled_dot_product_attention(*whole, **options)
    (expected * expected.detach()).sum().backward()
    given = [x.clone() for x in (q, k, v)]
    with st.context_parallel(buffers=given, buffer_seq_dims=[2, 2, 2], no_restore_buffers=given[:1]):
        for x, whole_x in zip(given, (q, k, v)):
            torch.testing.assert_close(x, zigzag(whole_x, 2))
        leaves = [x.clone().requires_grad_() for x in given]
        out = F.scaled_dot_product_attention(*leaves, **options)
    torch.testing.assert_close(out, zigzag(expected, 2))
    (out * out.detach()).sum().backward()
    for leaf, x in zip(leaves, whole):
        torch.testing.assert_close(leaf.grad, zigzag(x.grad, 2))
    torch.testing.assert_close(given, [zigzag(q, 2), k, v])  # the first is not restored


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_the_whole(ranks, causal):
    on_ranks(ranks, attention_case, causal, 2)
    on_ranks(ranks, attention_case, causal, HEADS)


def bad_input_case():
    q = torch.randn(BATCH, HEADS, 4, HEAD_DIM)
    positions = torch.arange(6)
    with pytest.raises(errors.InvalidArgument, match=r"buffers\[0\].shape\[0\] = 6 must be a multiple of 4"):
        with st.context_parallel(buffers=[positions], buffer_seq_dims=[0]):
            pass
    assert len(positions) == 6
    for buffer in (torch.arange(9)[:-1], torch.zeros(8, requires_grad=True)):
        with pytest.raises(errors.InvalidArgument, match="clone it"):
            with st.context_parallel(buffers=[buffer], buffer_seq_dims=[0]):
                pass
    with pytest.raises(errors.InvalidArgument, match="0 dimensions for 1 buffers"):
        with st.context_parallel(buffers=[q]):
            pass
    mask = torch.ones(4, 4, dtype=torch.bool)
    kept = torch.arange(8)
    for error, match, options in (
        (errors.Unsupported, "attn_mask", {"attn_mask": mask}),
        (errors.Unsupported, "dropout_p", {"dropout_p": 0.5}),
        (errors.Unsupported, "scale", {"scale": 1.0}),
        (errors.InvalidArgument, "enable_gqa", {"key": q[:, :2]}),
    ):
        with pytest.raises(error, match=match):
            with st.context_parallel(buffers=[kept], buffer_seq_dims=[0]):
                F.scaled_dot_product_attention(**{"query": q, "key": q, "value": q} | options)
        torch.testing.assert_close(kept, torch.arange(8))
    outside = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert outside.shape == q.shape


def test_bad_input_names_the_argument():
    on_ranks(2, bad_input_case)


def checkpoint_case(reentrant):
    """Backward within the context, of an attention that activation checkpointing calls again."""
    from torch.utils.checkpoint import checkpoint

    tokens = 4 * dist.get_world_size()
    q, k, v = (torch.randn(BATCH, HEADS, tokens, HEAD_DIM).double() for _ in range(3))

    def attend(*qkv):
        return F.scaled_dot_product_attention(*qkv, is_causal=True)

    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    attend(*whole).square().sum().backward()
    with st.context_parallel():
        leaves = [zigzag(x, 2).requires_grad_() for x in (q, k, v)]
        checkpoint(attend, *leaves, use_reentrant=reentrant).square().sum().backward()
    for leaf, x in zip(leaves, whole):
        torch.testing.assert_close(leaf.grad, zigzag(x.grad, 2))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_attends_to_all_tokens_again(reentrant):
    on_ranks(2, checkpoint_case, reentrant)
