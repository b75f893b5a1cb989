"""Context parallelism for models as they are, in the form of torch.distributed.tensor.experimental's.

A program of PyTorch's needs other imports only:

    from shingle.torch.context_parallel import context_parallel, context_parallel_unshard, set_rotate_method

Tokens are in a zigzag, PyTorch's head-and-tail load balance: rank r has chunks r and 2 · ranks - 1 - r of 2 · ranks
chunks. With zigzag=False, PyTorch's enable_load_balance = False, rank r has chunk r of as many chunks as ranks.
"""

import contextlib
import functools
from collections.abc import Mapping

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ..errors import InvalidArgument, Unsupported
from .choices import LIBRARY, PREDICTED, table
from .functional import ring_attention
from .groups import find_group, name_of


@contextlib.contextmanager
def context_parallel(mesh=None, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None, zigzag=True,
                     cu_seqlens=None):  # fmt: skip
    """Within it scaled_dot_product_attention is ring_attention, of tokens that are sharded over the ranks.

    It replaces the attribute of torch.nn.functional, also for backward within it.

    mesh: a 1-D DeviceMesh, a ProcessGroup or its name; None: all ranks. buffers: tensors with whole sequences, such as
    tokens, their positions and labels; equal on all ranks; no views. On entry each becomes this rank's shard, in place,
    along its dimension in buffer_seq_dims. At the end each is whole again, unless it is in no_restore_buffers. The
    number of chunks must divide the sequence. cu_seqlens: packed sequences, as in ring_attention.

    Attention takes [batch, heads, own tokens, head_dim], without mask and dropout, with the default scale. Others raise
    Unsupported.
    """
    group = find_group(name_of(mesh))
    buffers, no_restore_buffers = buffers or (), no_restore_buffers or ()
    check(buffers, buffer_seq_dims or (), "buffer_seq_dims", chunks_of(group, zigzag))
    for number, buffer in enumerate(buffers):
        if buffer.requires_grad or buffer.numel() * buffer.element_size() != buffer.untyped_storage().nbytes():
            raise InvalidArgument(f"buffers[{number}] is a view, or requires grad; clone it, as it is changed in place")
    if not all(any(x is buffer for buffer in buffers) for x in no_restore_buffers):
        raise InvalidArgument("no_restore_buffers has a tensor that is not in buffers")
    # Kept, not gathered again: a rank that leaves by an exception must not start a collective.
    kept = [(x, x.clone()) for x in buffers if not any(x is other for other in no_restore_buffers)]
    try:
        for buffer, dim in zip(buffers, buffer_seq_dims or ()):
            replace(buffer, own_chunks(buffer, dim, group, zigzag))
        with attention(group.name, zigzag, cu_seqlens):
            yield
    finally:
        for buffer, whole in kept:
            replace(buffer, whole)


def context_parallel_shard(mesh, buffers, seq_dims, *, zigzag=True):
    """This rank's shards of whole tensors, which stay as they are: what context_parallel makes of its buffers.

    buffers, seq_dims: sequences, or dicts with the same keys. Returns a list, or a dict. Differentiable.
    """
    if isinstance(buffers, Mapping):
        if not isinstance(seq_dims, Mapping) or buffers.keys() != seq_dims.keys():
            raise InvalidArgument(f"seq_dims must be a dict with the keys of buffers, {', '.join(map(str, buffers))}")
        names = list(buffers)
        shards = context_parallel_shard(
            mesh, [buffers[name] for name in names], [seq_dims[name] for name in names], zigzag=zigzag
        )
        return dict(zip(names, shards))
    group = find_group(name_of(mesh))
    check(buffers, seq_dims, "seq_dims", chunks_of(group, zigzag))
    return [own_chunks(buffer, dim, group, zigzag) for buffer, dim in zip(buffers, seq_dims)]


@torch.no_grad()
def context_parallel_unshard(mesh, buffers, seq_dims, *, zigzag=True):
    """Whole tensors, such as logits, from the ranks' shards of them. Collective; not differentiable.

    buffers: this rank's shards, as many tokens on all ranks. seq_dims: the dimension of the tokens of each. Returns a
    list of tensors that are equal on all ranks.
    """
    group = find_group(name_of(mesh))
    check(buffers, seq_dims, "seq_dims", 2 if zigzag else 1)
    return [joined_chunks(buffer, dim, group, zigzag) for buffer, dim in zip(buffers, seq_dims)]


def set_rotate_method(rotate_method):
    """How keys and values reach all ranks where ring_attention runs on GPUs, for all groups.

    "allgather": c10d gathers them, then PyTorch attends. "alltoall": they travel around the ring while parts are
    attended to. None, as at first: as shingle.torch.table chooses.
    """
    choices = {"allgather": LIBRARY, "alltoall": PREDICTED, None: None}
    if rotate_method not in choices:
        raise InvalidArgument(f"rotate_method = {rotate_method!r} must be 'allgather', 'alltoall' or None")
    table.fix(("allgather+attention", "attention-backward"), choices[rotate_method])


def chunks_of(group, zigzag):
    return 2 * group.size if zigzag else group.size


def check(buffers, dims, name, chunks):
    if len(buffers) != len(dims):
        raise InvalidArgument(f"{name} has {len(dims)} dimensions for {len(buffers)} buffers; expected one each")
    for number, (buffer, dim) in enumerate(zip(buffers, dims)):
        if not -buffer.dim() <= dim < buffer.dim():
            raise InvalidArgument(f"{name}[{number}] = {dim}, but buffers[{number}] has {buffer.dim()} dimensions")
        if buffer.shape[dim] % chunks != 0:
            raise InvalidArgument(
                f"buffers[{number}].shape[{dim}] = {buffer.shape[dim]} must be a multiple of {chunks}, the chunks"
            )


@torch.no_grad()
def replace(buffer, other):
    buffer.resize_(other.shape).copy_(other)


def own_chunks(x, dim, group, zigzag):
    chunks = x.chunk(chunks_of(group, zigzag), dim)
    if not zigzag:
        return chunks[group.rank].clone()
    return torch.cat((chunks[group.rank], chunks[-1 - group.rank]), dim)


def joined_chunks(x, dim, group, zigzag):
    shards = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size)]
    dist.all_gather(shards, x.contiguous(), group=group.process_group)
    if not zigzag:
        return torch.cat(shards, dim)
    firsts, seconds = zip(*(shard.chunk(2, dim) for shard in shards))
    return torch.cat((*firsts, *reversed(seconds)), dim)


@contextlib.contextmanager
def attention(group, zigzag=True, cu_seqlens=None):
    """Replaces torch.nn.functional.scaled_dot_product_attention by ring attention over a group.

    For all threads, because activation checkpointing calls it again from those of autograd.
    """
    torch.overrides.get_overridable_functions()  # cached with PyTorch's function; torch.compile asks for them
    before = F.scaled_dot_product_attention

    @functools.wraps(before)
    def attending(*args, **kwargs):
        return attend(group, {"zigzag": zigzag, "cu_seqlens": cu_seqlens}, *args, **kwargs)

    F.scaled_dot_product_attention = attending
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


def attend(group, options, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
           enable_gqa=False):  # fmt: skip
    default = query.shape[-1] ** -0.5
    for name, given in (
        ("attn_mask", attn_mask is not None),
        ("dropout_p", dropout_p != 0),
        ("scale", scale is not None and abs(scale - default) > 1e-6 * default),
    ):
        if given:
            raise Unsupported(f"{name}: attention in context_parallel takes none; tokens are causal or all seen")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidArgument(
            f"query has {query.shape[1]} heads and key {key.shape[1]}; pass enable_gqa=True if they share"
        )
    tokens = (x.permute(2, 0, 1, 3) for x in (query, key, value))
    return ring_attention(*tokens, group, causal=is_causal, **options).permute(1, 2, 0, 3)
