"""CUDA kernels of the ops with attention: one call of the group's context, or c10d and PyTorch's attention."""

import torch

from . import native, outputs, overlapped, sequential, shapes
from .choices import LIBRARY, table
from .groups import find_group


MOST_OF_MEMORY = 8  # a backward's workspace is at most this part of a GPU's memory


def serves(shape, m, lengths=None):
    """True if calls of a shape with m rows run by a context, not as mm + c10d, launched one by one or in a graph."""
    ways = (shape._replace(captured=captured) for captured in (False, True))
    return shape.dtype is not None and m > 0 and any(table.choose(way, m, lengths) != LIBRARY for way in ways)


def attention_reduce_scatter(q, k, v, w, group, head_dim, causal=False, cu_seqlens=None):
    given, inputs = (group, head_dim, causal, cu_seqlens), (q, k, v, w)
    key = "attention_reduce_scatter", group, q.shape, head_dim, causal
    if cu_seqlens is None and (served := native.serve(key, inputs)):
        return served[0]
    out, at = outputs.attention_reduce_scatter(*inputs, *given), find_group(group)
    transposed = overlapped.is_transposed(w)
    shape = attention("attention+reducescatter", q, k, at, head_dim, causal, n=w.shape[0], transposed=transposed)
    if attend(shape, q.shape[0], at, inputs, [out], cu_seqlens, key):
        return out
    return sequential.attention_reduce_scatter(*inputs, *given)


def ulysses_attention(q, k, v, group, head_dim, causal=False, rows=None, cu_seqlens=None):
    given, inputs = (group, head_dim, causal, rows, cu_seqlens), (q, k, v)
    key = "ulysses_attention", group, q.shape, head_dim, causal, rows
    if cu_seqlens is None and (served := native.serve(key, inputs)):
        return served[0]
    out, at = outputs.ulysses_attention(*inputs, *given), find_group(group)
    m = shapes.all_rows(q, rows, at)
    if attend(attention("ulysses-attention", q, k, at, head_dim, causal), m, at, inputs, [out], cu_seqlens, key):
        return out
    return sequential.ulysses_attention(*inputs, *given)


def attention(op, q, k, group, head_dim, causal, n=None, transposed=False, **fields):
    """The Shape of an attention. n: columns of the product behind it; None: there is none."""
    split = 1 if n is None else group.size  # ranks hold all heads, or their own
    heads = split * q.shape[1] // head_dim, split * k.shape[1] // head_dim, head_dim, causal
    n, k = q.shape[1] if n is None else n, q.shape[1]
    shape = overlapped.shape_of(op, n, k, q.dtype, group.size, transposed, attention=heads, **fields)
    served = not q.is_cuda or (shape.dtype != "f32" and head_dim % 8 == 0 and head_dim <= 256)
    return shape if served else shape._replace(dtype=None)  # cuDNN has no such attention


def backward_of(q, k, group, head_dim, causal, zigzag, m, lengths):
    """The Shape of attention-backward; of no dtype if its workspace would take too much of a GPU's memory.

    Before 9.25 cuDNN holds two bytes for each pair of a query and a key. A launch has at least the query heads that
    share one head of k, for the queries of a chunk and at most all keys.
    """
    shape = attention("attention-backward", q, k, group, head_dim, causal, zigzag=zigzag)
    if not q.is_cuda or (torch.backends.cudnn.version() or 0) >= 92500:
        return shape
    keys = max(lengths) if lengths else m
    queries = min(shapes.shard_rows(m, group, zigzag) // (2 if zigzag else 1), keys)
    workspace = 2 * queries * keys * (q.shape[1] // k.shape[1])
    memory = torch.cuda.get_device_properties(q.device).total_memory
    return shape if workspace <= memory // MOST_OF_MEMORY else shape._replace(dtype=None)


def attend(shape, m, group, inputs, made, cu_seqlens, key=None):
    """Calls an attention, unless it runs as c10d and attention. Returns whether it did.

    made: the results. key: what later calls must have in common to be served alike; None: Python serves all.
    """
    lengths = shapes.lengths_of(cu_seqlens, m)
    shape = overlapped.chosen(group, shape, m, inputs[0].device, lengths)
    if shape is None:
        return False
    rows, weights = (inputs[:3], inputs[3:]) if shape.op == "attention+reducescatter" else (inputs, ())
    matrices = [*map(overlapped.rows_argument, rows)]
    matrices += [overlapped.weight_argument(w, shape.transpose_b) for w in weights]
    matrices += map(overlapped.rows_argument, made)
    like = (key, inputs, made) if key and cu_seqlens is None else None
    overlapped.enqueue(group, shape, m, inputs[0].device, matrices, like=like, lengths=lengths)
    return True


def ulysses_gradients(grad, q, k, v, group, head_dim, causal, rows, cu_seqlens=None):
    outputs.ulysses_gradients(grad, q, k, v, group, head_dim, causal, rows, cu_seqlens)
    return sequential.ulysses_gradients(grad, q, k, v, group, head_dim, causal, rows, cu_seqlens)


def ring_attention(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    given, inputs = (group, head_dim, causal, zigzag, rows, cu_seqlens), (q, k, v)
    key = "ring_attention", group, q.shape, head_dim, causal, zigzag, rows
    if cu_seqlens is None and (served := native.serve(key, inputs)):
        return served[0]
    out, at = outputs.ring_attention(*inputs, *given), find_group(group)
    m = shapes.all_rows(q, rows, at, zigzag)
    shape = attention("allgather+attention", q, k, at, head_dim, causal, zigzag=zigzag)
    if attend(shape, m, at, inputs, [out], cu_seqlens, key):
        return out
    return sequential.ring_attention(*inputs, *given)


def ring_attention_with_lse(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    """The forward of a backward: with the log-sum-exp if attention-backward will take it."""
    shapes.check_attention(q, k, v, head_dim, 1)
    shapes.check_cu_seqlens(cu_seqlens)
    given, at = (q, k, v, group, head_dim, causal, zigzag, rows, cu_seqlens), find_group(group)
    m = shapes.all_rows(q, rows, at, zigzag)
    lengths = shapes.lengths_of(cu_seqlens, m)
    backward = backward_of(q, k, at, head_dim, causal, zigzag, m, lengths)
    if shapes.backward_takes_lse(q, head_dim) and serves(backward, m, lengths):
        # So that warmup also measures the forward of a backward by c10d and attention, which it may choose.
        overlapped.note(at, backward._replace(op="allgather+attention"), q.device)
        return attend_with_lse(*given)
    # Backward will attend again. If the table changes before that, NaN shows it.
    return ring_attention(*given), outputs.log_sum_exp(q, head_dim).fill_(torch.nan)


def attend_with_lse(q, k, v, group, head_dim, causal=False, zigzag=False, rows=None, cu_seqlens=None):
    given = q, k, v, group, head_dim, causal, zigzag, rows, cu_seqlens
    made, at = outputs.ring_attention_with_lse(*given), find_group(group)
    m = shapes.all_rows(q, rows, at, zigzag)
    shape = attention("allgather+attention", q, k, at, head_dim, causal, zigzag=zigzag, returns_lse=True)
    # Without a key: libshingle_torch.so makes results of the inputs' dtype only.
    if attend(shape, m, at, (q, k, v), made, cu_seqlens):
        return made
    return sequential.attend_with_lse(*given)


def ring_gradients(grad, q, k, v, out, lse, group, head_dim, causal, zigzag, rows, cu_seqlens=None):
    given = grad, q, k, v, out, lse, group, head_dim, causal, zigzag, rows, cu_seqlens
    made, at = outputs.ring_gradients(*given), find_group(group)
    m = shapes.all_rows(q, rows, at, zigzag)
    shape = backward_of(q, k, at, head_dim, causal, zigzag, m, shapes.lengths_of(cu_seqlens, m))
    if lse is not None and attend(shape, m, at, (q, k, v, grad, out, lse), made, cu_seqlens):
        return made
    return sequential.ring_gradients(*given)
