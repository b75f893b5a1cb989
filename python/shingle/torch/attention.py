"""Attention of sequences that are packed along the rows, on one rank: by PyTorch, one call for each Part.

Matrices are [tokens, heads · head_dim]. Consecutive heads of q may share one of k and v.
"""

import bisect
import itertools
from typing import NamedTuple

import torch

from . import shapes

MASK_ELEMENTS = 1 << 28  # most of a mask; a larger attention is cut into blocks of queries


class Part(NamedTuple):
    """Consecutive queries that see the same keys, or a triangle at the end of them."""

    row: int  # of the first query
    key: int  # the first key
    queries: int  # of each sequence
    keys: int  # of each sequence
    causal: bool  # the last query sees all keys, the one before all but the last, …
    sequences: int = 1  # of this shape, one behind another


def parts_of(queries, tokens, causal, lengths=None):
    """The Parts of an attention to all tokens, in the order of its queries.

    queries: ranges [first, end) of tokens, ascending. lengths: tokens of each sequence; None: one sequence.
    """
    ends, parts, row = list(itertools.accumulate(lengths or (tokens,))), [], 0
    for first, end in queries:
        while first < end:
            sequence = bisect.bisect_right(ends, first)
            begin, stop = ends[sequence - 1] if sequence else 0, min(end, ends[sequence])
            if causal and first > begin:  # not from the begin of the sequence on: it takes a mask
                stop = min(stop, first + max(MASK_ELEMENTS // (stop - begin), 1))
            keys = (stop if causal else ends[sequence]) - begin
            add(parts, Part(row, begin, stop - first, keys, causal and stop - first > 1))
            row, first = row + stop - first, stop
    return parts


def add(parts, part):
    """Appends a part, or makes it one with the last: whole sequences of one length, or queries of the same keys."""
    if parts:
        last = parts[-1]
        alike = last.queries == last.keys == part.queries == part.keys
        if alike and last.key + last.sequences * last.keys == part.key:
            parts[-1] = last._replace(sequences=last.sequences + 1)
            return
        if (last.key, last.keys, last.causal, last.sequences, part.causal) == (part.key, part.keys, False, 1, False):
            parts[-1] = last._replace(queries=last.queries + part.queries)
            return
    parts.append(part)


def attend(q, k, v, head_dim, parts):
    """softmax(q·kᵀ / sqrt(head_dim)) · v: [queries, heads · head_dim]."""
    if not parts:
        return torch.zeros_like(q)
    outs = [attend_part(q, k, v, head_dim, part) for part in parts]
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def attend_part(q, k, v, head_dim, part):
    def heads(x, first, count):
        rows = x[first : first + part.sequences * count]
        return rows.unflatten(0, (part.sequences, count)).unflatten(2, (-1, head_dim)).transpose(1, 2)

    square = part.causal and part.queries == part.keys
    mask = triangle(part, 0, part.queries, q.device) if part.causal and not square else None
    # Not of torch.nn.functional, which context_parallel replaces by what calls this.
    out = torch.ops.aten.scaled_dot_product_attention(
        heads(q, part.row, part.queries), heads(k, part.key, part.keys), heads(v, part.key, part.keys),
        attn_mask=mask, is_causal=square, enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def triangle(part, first, end, device):
    """Which keys the queries [first, end) of a causal part see: [queries, keys]."""
    return torch.ones(end - first, part.keys, dtype=torch.bool, device=device).tril(part.keys - part.queries + first)


QUERIES_AT_ONCE = 128  # whose scores log_sum_exp() holds


def log_sum_exp(q, k, head_dim, parts):
    """The log-sum-exp of the scaled scores of attend(), in fp32 at least: [queries, heads]."""
    wide, kv_heads = shapes.wide(q.dtype), k.shape[1] // head_dim
    keys_of_heads = k.to(wide).unflatten(1, (kv_heads, head_dim)) * head_dim**-0.5
    lse = q.new_empty(q.shape[0], q.shape[1] // head_dim, dtype=wide)
    for part, sequence in ((part, sequence) for part in parts for sequence in range(part.sequences)):
        row, key = part.row + sequence * part.queries, part.key + sequence * part.keys
        for first in range(0, part.queries, QUERIES_AT_ONCE):
            end = min(first + QUERIES_AT_ONCE, part.queries)
            queries = q[row + first : row + end].to(wide).unflatten(1, (kv_heads, -1, head_dim))
            scores = torch.einsum("ighd,jgd->ighj", queries, keys_of_heads[key : key + part.keys])
            if part.causal:
                scores = scores.masked_fill(~triangle(part, first, end, q.device)[:, None, None], -torch.inf)
            lse[row + first : row + end] = scores.logsumexp(-1).flatten(1)
    return lse


def gradients(grad, q, k, v, head_dim, parts):
    """The attended tokens, and gradients of q, k and v. Attends again, because the heads' scores are not kept.

    Of several parts one is worked on after the other, so that one mask exists at a time; sums are in fp32 at least.
    """
    if len(parts) == 1:
        return of_part(grad, q, k, v, head_dim, parts[0])
    attended, dq = q.new_empty(q.shape), q.new_empty(q.shape)
    dk, dv = (torch.zeros(x.shape, dtype=shapes.wide(x.dtype), device=x.device) for x in (k, v))
    for part in parts:
        rows = slice(part.row, part.row + part.sequences * part.queries)
        keys = slice(part.key, part.key + part.sequences * part.keys)
        alone = part._replace(row=0, key=0)
        attended[rows], dq[rows], *of_keys = of_part(grad[rows], q[rows], k[keys], v[keys], head_dim, alone)
        dk[keys] += of_keys[0]
        dv[keys] += of_keys[1]
    return attended, dq, dk.to(k.dtype), dv.to(v.dtype)


def of_part(grad, q, k, v, head_dim, part):
    out, pull_back = torch.func.vjp(lambda *qkv: attend_part(*qkv, head_dim, part), q, k, v)
    return tuple(x.contiguous() for x in (out, *pull_back(grad)))
