"""Rows of shards, and the checks of the ops' arguments. Used by kernels and by fakes, so sizes may be symbolic."""

import torch
import torch.compiler.config
import torch.distributed as dist
from torch.fx.experimental.symbolic_shapes import guard_or_false

from ..errors import InvalidArgument

ACTIVATIONS = ("relu", "gelu", "silu", "swiglu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # of experts


def shard_rows(rows, group, zigzag=False):
    """Rows of the largest shard: ceil(rows / ranks), or two chunks of a zigzag."""
    if zigzag:
        return 2 * ((rows + 2 * group.size - 1) // (2 * group.size))
    return (rows + group.size - 1) // group.size


def tag_compile_caches():
    """Keeps compiled code of this rank from other ranks: sizes in it depend on the rank, but the graph does not."""
    tag, config = f"shingle rank {dist.get_rank()};", torch.compiler.config
    if tag not in config.cache_key_tag:
        config.cache_key_tag += tag


def own_rows(rows, group, zigzag=False):
    """Rows of this rank's shard. Rank r holds rows [r · ceil(rows / ranks), …), the last ranks fewer or none.

    zigzag: rank r holds chunks r and 2 · ranks - 1 - r of 2 · ranks chunks.
    """
    if zigzag:
        halves = (group._replace(size=2 * group.size, rank=at) for at in (group.rank, 2 * group.size - 1 - group.rank))
        return sum(own_rows(rows, half) for half in halves)
    if isinstance(rows, int):
        shard = shard_rows(rows, group)
        if rows % group.size != 0:
            tag_compile_caches()
        return min(max(rows - group.rank * shard, 0), shard)
    # A guard on divisibility keeps the usual expression simple. Uneven rows compile once more.
    if guard_or_false(rows % group.size == 0):
        return rows // group.size
    tag_compile_caches()
    shard = shard_rows(rows, group)
    return torch.sym_min(torch.sym_max(rows - group.rank * shard, 0), shard)


def own_tokens(rows, group, zigzag=False):
    """This rank's tokens: ranges [first, end), ascending, one behind another joined."""
    chunks = (group.rank, 2 * group.size - 1 - group.rank) if zigzag else (group.rank,)
    size, ranges = shard_rows(rows, group, zigzag) // len(chunks), []
    for chunk in chunks:
        first, end = min(chunk * size, rows), min((chunk + 1) * size, rows)
        if ranges and ranges[-1][1] == first:
            ranges[-1] = ranges[-1][0], end
        elif first < end:
            ranges.append((first, end))
    return ranges


def check_cu_seqlens(cu_seqlens):
    """Checks what lengths_of() takes, but for its values: fake kernels do not know them."""
    if cu_seqlens is None:
        return
    if cu_seqlens.dim() != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.device.type != "cpu":
        raise InvalidArgument(
            f"cu_seqlens is {cu_seqlens.dtype} of {tuple(cu_seqlens.shape)} on {cu_seqlens.device}; expected int32 or "
            "int64 of [sequences + 1] on cpu"
        )


def lengths_of(cu_seqlens, tokens):
    """Tokens of each sequence as a tuple, without empty ones; None: one sequence of all tokens.

    cu_seqlens: None, or where each sequence begins among the tokens of all ranks and the last one ends: [0, …, tokens].
    """
    if cu_seqlens is None:
        return None
    ends = cu_seqlens.tolist()
    if not ends or ends[0] != 0 or ends[-1] != tokens or any(end < begin for begin, end in zip(ends, ends[1:])):
        shown = ends if len(ends) <= 8 else [*ends[:4], "…", *ends[-3:]]
        raise InvalidArgument(
            f"cu_seqlens = {shown} must ascend from 0 to {tokens}, the tokens of all ranks; padding is a sequence too"
        )
    lengths = tuple(end - begin for begin, end in zip(ends, ends[1:]) if end > begin)
    return lengths if len(lengths) > 1 else None


def rows_by_rank(rows, group):
    """Rows of each rank's shard, as own_rows()."""
    return [own_rows(rows, group._replace(rank=rank)) for rank in range(group.size)]


def all_rows(x, rows, group, zigzag=False):
    """Rows of all ranks' shards: `rows`, or as many on every rank as in x. Checks that x is this rank's shard."""
    if rows is None:
        if zigzag and x.shape[0] % 2 != 0:
            raise InvalidArgument(
                f"x.shape[0] = {x.shape[0]} is odd, but a rank has two equal chunks in a zigzag; give rows if some differ"
            )
        return x.shape[0] * group.size
    own = own_rows(rows, group, zigzag)
    if x.shape[0] != own:
        raise InvalidArgument(
            f"x.shape[0] = {x.shape[0]}, but rank {group.rank} of {group.size} holds {own} of rows = {rows}"
            + (" in a zigzag" if zigzag else "")
        )
    return rows


def out_columns(w, activation):
    """Columns of activation(x·wᵀ); w is [..., n, k]."""
    return w.shape[-2] // 2 if activation == "swiglu" else w.shape[-2]


def check_gemm(x, w, name="w"):
    """Checks the arguments of x·wᵀ: x is [rows, k], w is [n, k], both of one floating dtype on one device."""
    if x.dim() != 2:
        raise InvalidArgument(f"x has {x.dim()} dimensions; expected [rows, k]")
    if not x.is_floating_point():
        raise InvalidArgument(f"x.dtype = {x.dtype}; expected a floating dtype")
    check_weight(x, w, name, x.shape[1])


def check_weight(x, w, name, columns):
    if w.dim() != 2 or w.shape[1] != columns:
        raise InvalidArgument(
            f"{name}.shape = {tuple(w.shape)}; expected [out, {columns}], to multiply {columns} columns"
        )
    check_like(x, w, name)


def check_like(x, other, name):
    if other.dtype != x.dtype:
        raise InvalidArgument(f"{name}.dtype = {other.dtype}, but x.dtype = {x.dtype}; both must be equal")
    if other.device != x.device:
        raise InvalidArgument(f"{name}.device = {other.device}, but x.device = {x.device}; both must be equal")


def check_attention(q, k, v, head_dim, ranks):
    """Checks q [own tokens, heads · head_dim] and k and v [own tokens, kv_heads · head_dim].

    ranks: number of ranks that split the heads.
    """
    if head_dim < 1:
        raise InvalidArgument(f"head_dim = {head_dim} must be positive")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 2 or x.shape[1] % head_dim != 0 or not x.is_floating_point():
            raise InvalidArgument(
                f"{name} is {x.dtype} of {tuple(x.shape)}; expected a floating dtype, [own tokens, heads * {head_dim}]"
            )
        if x.shape[0] != q.shape[0] or x.dtype != q.dtype or x.device != q.device:
            raise InvalidArgument(
                f"{name} has {x.shape[0]} tokens, {x.dtype} on {x.device}, but q has {q.shape[0]}, {q.dtype} on {q.device}"
            )
    if v.shape != k.shape:
        raise InvalidArgument(f"v.shape = {tuple(v.shape)}, but k.shape = {tuple(k.shape)}; both must be equal")
    heads, kv_heads = q.shape[1] // head_dim, k.shape[1] // head_dim
    if kv_heads == 0 or heads % kv_heads != 0 or kv_heads % ranks != 0:
        raise InvalidArgument(
            f"q has {heads} heads and k has {kv_heads}; k's must divide q's"
            + (f", and the {ranks} ranks must divide k's" if ranks > 1 else "")
        )


# The oldest cuDNN whose backward of attention libshingle.so takes (src/cuda/commands/attention.cpp).
LEAST_CUDNN = 91501


def backward_takes_lse(q, head_dim):
    """True if attention-backward serves such queries: the forward then keeps its log-sum-exp.

    Equal on ranks with equal GPUs and the same cuDNN. Table.choose() still decides which calls it serves.
    """
    if not q.is_cuda or q.dtype not in (torch.bfloat16, torch.float16) or head_dim % 8 != 0 or head_dim > 256:
        return False
    hopper = torch.cuda.get_device_capability(q.device)[0] == 9
    return (hopper or head_dim <= 128) and (torch.backends.cudnn.version() or 0) >= LEAST_CUDNN


def wide(dtype):
    """The dtype of log-sum-exps: fp32 at least."""
    return torch.promote_types(dtype, torch.float32)


def check_lse(q, lse, head_dim):
    shape, dtype = (q.shape[0], q.shape[1] // head_dim), wide(q.dtype)
    if lse.dim() != 2 or any(given != size for given, size in zip(lse.shape, shape)) or lse.dtype != dtype:
        raise InvalidArgument(f"lse is {lse.dtype} of {tuple(lse.shape)}; expected {dtype} of {shape}")


def check_row(x, row, columns, name):
    """Checks a vector of `columns` elements, or None."""
    if row is not None:
        check_matrix(x, row, (columns,), name)


def check_matrix(x, matrix, shape, name):
    if matrix.dim() != len(shape) or any(given != size for given, size in zip(matrix.shape, shape)):
        raise InvalidArgument(f"{name}.shape = {tuple(matrix.shape)}; expected {tuple(shape)}")
    check_like(x, matrix, name)


def check_activation(activation, w, name="w"):
    if activation is not None and activation not in ACTIVATIONS:
        raise InvalidArgument(f"activation = {activation!r}; expected None or one of {', '.join(ACTIVATIONS)}")
    if activation == "swiglu" and w.shape[-2] % 2 != 0:
        raise InvalidArgument(f"{name}.shape[{w.dim() - 2}] = {w.shape[-2]} must be even: swiglu takes [gate | up]")


def check_types(types, **arguments):
    """Checks Python types, for which the dispatcher would raise an error of torch. Raises on this rank alone."""
    accepted = types if isinstance(types, tuple) else (types,)
    for name, given in arguments.items():
        if not isinstance(given, accepted):
            expected = " or ".join(of.__name__ for of in accepted)
            raise InvalidArgument(f"{name} = {given!r:.60} is of type {type(given).__name__}; expected {expected}")


def check_experts(x, w_up, w_down, activation):
    """Checks x [tokens, hidden], and the weights of a rank's experts: [experts, inner, hidden], [experts, n, inner]."""
    if x.dim() != 2 or x.dtype not in DTYPES:
        raise InvalidArgument(
            f"x is {x.dtype} of {tuple(x.shape)}; expected one of {', '.join(map(str, DTYPES))}, [tokens, hidden]"
        )
    for name, w in (("w_up", w_up), ("w_down", w_down)):
        if w.dim() != 3:
            raise InvalidArgument(f"{name}.shape = {tuple(w.shape)}; expected [experts of a rank, out, in]")
        check_like(x, w, name)
    check_activation(activation, w_up, "w_up")
    if w_up.shape[0] < 1 or w_up.shape[2] != x.shape[1]:
        raise InvalidArgument(
            f"w_up.shape = {tuple(w_up.shape)}; expected [experts of a rank, out, {x.shape[1]}], to multiply "
            f"{x.shape[1]} columns of x"
        )
    experts, inner = w_up.shape[0], out_columns(w_up, activation)
    if w_down.shape[0] != experts or w_down.shape[2] != inner:
        raise InvalidArgument(f"w_down.shape = {tuple(w_down.shape)}; expected [{experts}, out, {inner}], as of w_up")


def experts_of_all(w_up, group, tensor_parallel):
    """Experts of all ranks: this rank has a slice of each, or its part of them."""
    return w_up.shape[0] * (1 if tensor_parallel else group.size)


def check_choices(x, topk_ids, topk_weights, experts):
    """Checks topk_ids and topk_weights, [tokens, topk]. experts: of all ranks."""
    if topk_ids.dtype not in (torch.int32, torch.int64):
        raise InvalidArgument(f"topk_ids.dtype = {topk_ids.dtype}; expected torch.int32 or torch.int64")
    if topk_ids.dim() != 2 or topk_ids.shape[0] != x.shape[0]:
        raise InvalidArgument(f"topk_ids.shape = {tuple(topk_ids.shape)}; expected [{x.shape[0]}, topk], as x has tokens")
    if not 1 <= topk_ids.shape[1] <= experts:
        raise InvalidArgument(
            f"topk_ids.shape[1] = {topk_ids.shape[1]} experts of a token are outside [1, {experts}], those of all ranks"
        )
    if topk_ids.device != x.device:
        raise InvalidArgument(f"topk_ids.device = {topk_ids.device}, but x.device = {x.device}; both must be equal")
    dtype = wide(x.dtype)
    if topk_weights.dtype != dtype:
        raise InvalidArgument(f"topk_weights.dtype = {topk_weights.dtype}; expected {dtype} for x of {x.dtype}")
    check_matrix(x.new_empty(0, dtype=dtype), topk_weights, topk_ids.shape, "topk_weights")


def check_capacity(capacity, max_tokens, experts=1, tokens=0):
    """Checks the slots of an expert for one rank's tokens, and the most tokens of a rank.

    experts: of all ranks. tokens: of this rank. A module that declares a capacity leaves out what only calls know.
    """
    if capacity is None:
        if max_tokens is not None:
            raise InvalidArgument(f"max_tokens = {max_tokens} needs a capacity; without one leave it out")
        return
    most = torch.iinfo(torch.int32).max // experts
    if not 1 <= capacity <= most:
        raise InvalidArgument(
            f"capacity = {capacity} is outside [1, {most}]: the slots that each expert has for one rank's tokens"
        )
    if max_tokens is not None and tokens > max_tokens:
        raise InvalidArgument(
            f"max_tokens = {max_tokens}, but x has {tokens} tokens; give the most tokens of any rank, equal on all ranks"
        )


def check_replicated(replicated, tensor_parallel, capacity):
    if replicated and (capacity is None or not tensor_parallel):
        raise InvalidArgument("replicated = True needs tensor_parallel = True and a capacity")


def split_table(splits, group):
    """Rows that ranks send to each other, [source][destination], from the flat list of an op."""
    if len(splits) != group.size**2:
        raise InvalidArgument(f"splits has {len(splits)} numbers; expected {group.size} x {group.size}")
    for at, rows in enumerate(splits):
        if rows < 0:
            raise InvalidArgument(f"splits[{at // group.size}][{at % group.size}] = {rows} is negative")
    return [splits[source * group.size : (source + 1) * group.size] for source in range(group.size)]


def check_splits(x, table, group):
    """Checks that this rank sends the rows of x."""
    sent = sum(table[group.rank])
    if x.shape[0] != sent:
        raise InvalidArgument(f"x.shape[0] = {x.shape[0]}, but splits[{group.rank}] sends {sent} rows")


def received_rows(table, group):
    tag_compile_caches()
    return sum(row[group.rank] for row in table)
