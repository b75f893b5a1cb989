"""Context parallelism for models as they are, in the form of torch.distributed.tensor.experimental.context_parallel."""

import contextlib
import functools

import torch
import torch.nn.functional as F

from ..errors import InvalidArgument, Unsupported
from .functional import ring_attention
from .groups import find_group, name_of


@contextlib.contextmanager
def context_parallel(mesh=None, *, buffers=None, buffer_seq_dims=None, no_restore_buffers=None):
    """Within it scaled_dot_product_attention is ring_attention, of tokens that are sharded over the ranks.

    It replaces the attribute of torch.nn.functional, also for backward within it.

    mesh: a 1-D DeviceMesh, a ProcessGroup or its name; None: all ranks. buffers: tensors with whole sequences, such as
    tokens, their positions and labels; equal on all ranks; no views. On entry each becomes this rank's shard, in place,
    along its dimension in buffer_seq_dims. At the end each is whole again, unless it is in no_restore_buffers. Tokens
    are in a zigzag: rank r has chunks r and 2 · ranks - 1 - r of 2 · ranks chunks; their number must divide the sequence.

    Attention takes [batch, heads, own tokens, head_dim], without mask and dropout, with the default scale. Others raise
    Unsupported.
    """
    group = find_group(name_of(mesh))
    buffers, buffer_seq_dims, no_restore_buffers = buffers or (), buffer_seq_dims or (), no_restore_buffers or ()
    if len(buffers) != len(buffer_seq_dims):
        raise InvalidArgument(
            f"buffer_seq_dims has {len(buffer_seq_dims)} dimensions for {len(buffers)} buffers; expected one each"
        )
    chunks = 2 * group.size
    for number, (buffer, dim) in enumerate(zip(buffers, buffer_seq_dims)):
        if buffer.shape[dim] % chunks != 0:
            raise InvalidArgument(
                f"buffers[{number}].shape[{dim}] = {buffer.shape[dim]} must be a multiple of {chunks}, twice the ranks"
            )
        if buffer.requires_grad or buffer.numel() * buffer.element_size() != buffer.untyped_storage().nbytes():
            raise InvalidArgument(f"buffers[{number}] is a view, or requires grad; clone it, as it is changed in place")
    # Kept, not gathered again: a rank that leaves by an exception must not start a collective.
    kept = [(x, x.clone()) for x in buffers if not any(x is other for other in no_restore_buffers)]
    try:
        for buffer, dim in zip(buffers, buffer_seq_dims):
            replace(buffer, own_chunks(buffer, dim, group))
        with attention(group.name):
            yield
    finally:
        for buffer, whole in kept:
            replace(buffer, whole)


@torch.no_grad()
def replace(buffer, other):
    buffer.resize_(other.shape).copy_(other)


def own_chunks(x, dim, group):
    chunks = x.chunk(2 * group.size, dim)
    return torch.cat((chunks[group.rank], chunks[-1 - group.rank]), dim)


@contextlib.contextmanager
def attention(group):
    """Replaces torch.nn.functional.scaled_dot_product_attention by ring attention over a group.

    For all threads, because activation checkpointing calls it again from those of autograd.
    """
    before, F.scaled_dot_product_attention = F.scaled_dot_product_attention, functools.partial(attend, group)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


def attend(group, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
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
    return ring_attention(*tokens, group, causal=is_causal, zigzag=True).permute(1, 2, 0, 3)
