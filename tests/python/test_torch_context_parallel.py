"""context_parallel against attention of the whole sequence, with gradients; what it takes and gives back."""

import importlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch.choices import LIBRARY, PREDICTED, Shape, table  # noqa: E402

BATCH, HEADS, HEAD_DIM = 2, 4, 8


def zigzag(x, dim):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    chunks = x.chunk(2 * ranks, dim)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]), dim)


def in_chunks(x, dim):
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def attention_case(causal, kv_heads, ends=None, balanced=True):
    """ends: where packed sequences end; None: one sequence. balanced: tokens are in a zigzag."""
    tokens, shard = 4 * dist.get_world_size(), zigzag if balanced else in_chunks
    q, k, v = (torch.randn(BATCH, heads, tokens, HEAD_DIM).double() for heads in (HEADS, kv_heads, kv_heads))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    options = {"is_causal": causal, "enable_gqa": kv_heads != HEADS}
    cuts = [0, *(ends or [tokens])]
    parts = [[x[:, :, begin:end] for x in whole] for begin, end in zip(cuts, cuts[1:])]
    expected = torch.cat([F.scaled_dot_product_attention(*part, **options) for part in parts], 2)
    (expected * expected.detach()).sum().backward()
    given = [x.clone() for x in (q, k, v)]
    with st.context_parallel(buffers=given, buffer_seq_dims=[2, 2, 2], no_restore_buffers=set(given[:1]),
                             zigzag=balanced, cu_seqlens=ends and cuts):  # fmt: skip
        for x, whole_x in zip(given, (q, k, v)):
            torch.testing.assert_close(x, shard(whole_x, 2))
        leaves = [x.clone().requires_grad_() for x in given]
        out = F.scaled_dot_product_attention(*leaves, **options)
    torch.testing.assert_close(out, shard(expected, 2))
    (out * out.detach()).sum().backward()
    for leaf, x in zip(leaves, whole):
        torch.testing.assert_close(leaf.grad, shard(x.grad, 2))
    torch.testing.assert_close(given, [shard(q, 2), k, v])  # the first is not restored
    (restored,) = st.context_parallel_unshard(None, [out.detach()], [2], zigzag=balanced)
    torch.testing.assert_close(restored, expected.detach())


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_the_whole(ranks, causal):
    on_ranks(ranks, attention_case, causal, 2)
    on_ranks(ranks, attention_case, causal, HEADS)
    on_ranks(ranks, attention_case, causal, 2, [3, 4, 4 * ranks])
    on_ranks(ranks, attention_case, causal, HEADS, [3, 4, 4 * ranks], False)


def as_in_pytorch_case():
    """The same shards and whole tensors as of PyTorch's functions of these names, whose attention needs a GPU."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention as theirs
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _create_default_load_balancer

    ranks = dist.get_world_size()
    mesh, tokens = init_device_mesh("cpu", (ranks,)), 4 * ranks
    q = torch.randn(BATCH, HEADS, tokens, HEAD_DIM)
    places, dims = torch.arange(BATCH * tokens).view(BATCH, tokens), [2, 1]
    results = []
    for module in (theirs, importlib.import_module("shingle.torch.context_parallel")):
        buffers = [q.clone(), places.clone()]
        module.set_rotate_method("alltoall")
        with module.context_parallel(mesh, buffers=buffers, buffer_seq_dims=dims, no_restore_buffers=set(buffers)):
            results.append((*buffers, *module.context_parallel_unshard(mesh, buffers, dims)))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(results[1][2:], (q, places))
    balancer = _create_default_load_balancer(tokens, ranks, "cpu")
    shards = theirs._context_parallel_shard(mesh, [q, places], dims, balancer)
    torch.testing.assert_close(st.context_parallel_shard(mesh, [q, places], dims), shards)
    named = st.context_parallel_shard(mesh, {"q": q, "places": places}, {"q": 2, "places": 1})
    torch.testing.assert_close(named, {"q": shards[0], "places": shards[1]})
    in_order = theirs._context_parallel_shard(mesh, [q], [2])
    torch.testing.assert_close(st.context_parallel_shard(mesh, [q], [2], zigzag=False), in_order)
    st.set_rotate_method(None)


def test_functions_are_as_in_pytorch():
    on_ranks(2, as_in_pytorch_case)


def style_case():
    """The style of parallelize_module, whose modules alone attend to the tokens of all ranks."""
    from shingle.torch.dtensor import ContextParallel
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    class Attention(torch.nn.Module):
        def forward(self, x, causal=False):
            return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    mesh, x = init_device_mesh("cpu", (dist.get_world_size(),)), torch.randn(BATCH, HEADS, 8, HEAD_DIM)
    expected = Attention()(x, causal=True)
    for balanced, shard in ((True, zigzag), (False, in_chunks)):
        model = torch.nn.ModuleDict({"attention": Attention()})
        parallelize_module(model, mesh, {"attention": ContextParallel(zigzag=balanced)})
        torch.testing.assert_close(model["attention"](shard(x, 2), causal=True), shard(expected, 2))
    torch.testing.assert_close(F.scaled_dot_product_attention(x, x, x, is_causal=True), expected)


def test_style_of_modules():
    on_ranks(2, style_case)


def test_rotate_method_is_the_choice_of_all_lengths():
    shape = Shape("allgather+attention", 8, 8, "bf16", 2, attention=(2, 2, 4, True))
    before = table.choose(shape, 4096)
    assert before == PREDICTED
    try:
        st.set_rotate_method("allgather")
        assert table.choose(shape, 4096) == table.choose(shape._replace(op="attention-backward"), 4096) == LIBRARY
        assert table.choose(shape._replace(op="ulysses-attention"), 4096) == PREDICTED
        assert table.mechanisms(shape) == []
        table.enter(shape, [(8192, LIBRARY)])
        st.set_rotate_method("alltoall")
        assert table.choose(shape, 4096) == PREDICTED and table.choose(shape, 1 << 30) == LIBRARY
        assert [of.mechanism for of in table.mechanisms(shape)] == ["ring engines=1"]
    finally:
        st.set_rotate_method(None)
    assert table.choose(shape, 4096) == LIBRARY, "as was measured"
    del table.rows[shape.key]
    with pytest.raises(errors.InvalidArgument, match="rotate_method = 'ring' must be"):
        st.set_rotate_method("ring")


def compile_case():
    tokens = 4 * dist.get_world_size()
    q = torch.randn(BATCH, HEADS, tokens, HEAD_DIM)

    def step(x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).square()

    expected = step(q)
    with st.context_parallel():
        x = zigzag(q, 2).requires_grad_()
        out = torch.compile(step, backend="aot_eager", fullgraph=True)(x)
        out.sum().backward()
    torch.testing.assert_close(out, zigzag(expected, 2))
    assert x.grad.isfinite().all()


def test_compiled_within_the_context():
    on_ranks(2, compile_case)


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
    with pytest.raises(errors.InvalidArgument, match="not in buffers"):
        with st.context_parallel(buffers=[positions[:4].clone()], buffer_seq_dims=[0], no_restore_buffers=[q]):
            pass
    for match, call in (
        (r"seq_dims\[0\] = 4, but buffers\[0\] has 4", lambda: st.context_parallel_shard(None, [q], [4])),
        ("0 dimensions for 1 buffers", lambda: st.context_parallel_unshard(None, [q], [])),
        ("must be a multiple of 2", lambda: st.context_parallel_unshard(None, [positions[:3]], [0])),
        ("keys of buffers, q", lambda: st.context_parallel_shard(None, {"q": q}, {"k": 2})),
    ):
        with pytest.raises(errors.InvalidArgument, match=match):
            call()
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


def test_transformers_attention_takes_no_lengths():
    pytest.importorskip("transformers", reason="transformers is not installed")
    from shingle.torch import transformers

    x = torch.randn(1, 2, 4, HEAD_DIM)
    module = torch.nn.Module()
    out, _ = transformers.attention_forward(module, x, x, x, None, is_causal=True)
    torch.testing.assert_close(out.transpose(1, 2), F.scaled_dot_product_attention(x, x, x, is_causal=True))
    with pytest.raises(errors.Unsupported, match="pass it to context_parallel"):
        transformers.attention_forward(module, x, x, x, None, cu_seq_lens_q=torch.tensor([0, 4]))
