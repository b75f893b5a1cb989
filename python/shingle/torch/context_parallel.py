"""Context parallelism for models as they are, in the form of torch.distributed.tensor.experimental.context_parallel."""

import contextlib

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ..errors import InvalidArgument, Unsupported
from . import sequential
from .functional import ring_attention
from .groups import find_group, name_of


@contextlib.contextmanager
def context_parallel(mesh=None, *, buffers=(), buffer_seq_dims=(), no_restore_buffers=()):
    """Within it scaled_dot_product_attention is ring_attention, of tokens that are sharded over the ranks.

    mesh: a 1-D DeviceMesh, a ProcessGroup or its name; None: all ranks. buffers: tensors with whole sequences, such as
    tokens, their positions and labels; equal on all ranks. On entry each becomes this rank's shard, in place, along its
    dimension in buffer_seq_dims; at the end each is whole again, unless it is in no_restore_buffers. Tokens are in a
    zigzag: rank r has chunks r and 2 · ranks - 1 - r of 2 · ranks chunks, whose number must divide the sequence.

    Attention takes [batch, heads, own tokens, head_dim], without mask and dropout, with the default scale. Others raise
    Unsupported.
    """
    group = find_group(name_of(mesh))
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
    for buffer, dim in zip(buffers, buffer_seq_dims):
        replace(buffer, own_chunks(buffer, dim, group))
    try:
        with RingAttention(group.name):
            yield
    finally:
        for buffer, dim in zip(buffers, buffer_seq_dims):
            if not any(buffer is other for other in no_restore_buffers):
                replace(buffer, whole(buffer, dim, group))


@torch.no_grad()
def replace(buffer, other):
    buffer.resize_(other.shape).copy_(other)


def own_chunks(x, dim, group):
    chunks = x.chunk(2 * group.size, dim)
    return torch.cat((chunks[group.rank], chunks[-1 - group.rank]), dim)


def whole(x, dim, group):
    tokens = x.detach().movedim(dim, 0)
    gathered = sequential.gather_tokens(tokens.reshape(len(tokens), -1), group.size * len(tokens), group, True)
    return gathered.view(-1, *tokens.shape[1:]).movedim(0, dim)


class RingAttention(TorchFunctionMode):
    """Calls ring_attention in place of scaled_dot_product_attention."""

    def __init__(self, group):
        super().__init__()
        self.group = group

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return self.attend(*args, **kwargs)
        return function(*args, **kwargs)

    def attend(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
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
        out = ring_attention(*tokens, self.group, causal=is_causal, zigzag=True)
        return out.permute(1, 2, 0, 3)
