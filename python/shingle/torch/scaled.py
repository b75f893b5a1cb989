"""fp8 products with a collective: the kernels behind symm_mem::fused_*_scaled_* while `patch` is in force.

Shingle's GEMM kernels have no fp8, so torch._scaled_mm computes the products and c10d communicates, one after the other.
For few rows that is faster than PyTorch's pipelines over symmetric memory, which cut a product into small ones. From
PIPELINED rows on, the patch leaves calls to PyTorch.
"""

import math
from typing import NamedTuple

import torch
import torch.distributed as dist

from ..errors import InvalidArgument
from .groups import find_group

PIPELINED = 2048  # rows of all ranks
ALIGNMENT = 16  # bytes: cuBLASLt's of row scales
# c10::ScalarType of what torch._scaled_mm returns. The dispatcher passes lists of dtypes as these numbers.
DTYPES = {
    5: torch.float16, 6: torch.float32, 15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn,
}  # fmt: skip


class Weight(NamedTuple):
    """The right side of a product, and how its result is scaled and rounded."""

    matrix: torch.Tensor  # [k, n]
    scale: torch.Tensor  # one element, or [1, n]
    bias: torch.Tensor | None
    result_scale: torch.Tensor | None
    dtype: torch.dtype  # of the result
    fast_accumulation: bool


def multiply(rows, scale, weight, out):
    """out = (rows · scale) · weight. rows: [m, k]. scale: one element, or [m, 1]. out: [m, n]."""
    torch._scaled_mm(
        rows, weight.matrix, scale_a=scale, scale_b=weight.scale, bias=weight.bias, scale_result=weight.result_scale,
        out_dtype=weight.dtype, use_fast_accum=weight.fast_accumulation, out=out,
    )  # fmt: skip


def is_served(shape, dim, ranks):
    """True for few rows of all ranks that are not cut into columns. shape: of this rank's part, or of the whole."""
    return dim not in (-1, len(shape) - 1) and math.prod(shape[:-1]) * ranks < PIPELINED


def all_gather_gemm(x, scale, weights, dim, group):
    """(gathered x, [gathered x · w for w in weights]).

    x: this rank's part, [..., k], gathered in dimension `dim`. scale: one element; or a scale for each row, of x's
    leading dimensions or of the gathered x's.
    """
    group, dim = find_group(group), leading("gather_dim", dim, x.dim())
    for i, weight in enumerate(weights):
        check_weight(f"Bs[{i}]", weight, x)
    front = x.movedim(dim, 0)
    shard = front.flatten(0, -2).contiguous()
    own, k = shard.shape
    rows = own * group.size
    gathered = shard.new_empty(rows, k)
    outs = [shard.new_empty(rows, weight.matrix.shape[1], dtype=weight.dtype) for weight in weights]
    own_scale, scales, sharded = scales_of(x, scale, dim, group.size)
    if sharded:
        gather([gathered, scales], [shard, own_scale], group).wait()
    else:
        gather([gathered], [shard], group).wait()
    for weight, out in zip(weights, outs):
        if rows > 0:
            multiply(gathered, scales, weight, out)

    def unflatten(matrix):
        return matrix.view(front.shape[0] * group.size, *front.shape[1:-1], matrix.shape[1]).movedim(0, dim)

    return unflatten(gathered), [unflatten(out) for out in outs]


def scales_of(x, scale, dim, ranks):
    """(scales of the own rows, scales of all rows, whether the latter must be gathered from the former)."""
    whole = list(x.shape[:-1])
    whole[dim] *= ranks
    if list(scale.shape) == [*x.shape[:-1], 1]:
        own = column(scale, dim)
        return own, own.new_empty(own.shape[0] * ranks, 1), True
    if scale.numel() == 1:
        return scale, scale, False
    if list(scale.shape) == [*whole, 1]:
        return None, column(scale, dim), False
    raise InvalidArgument(
        f"A_scale.shape = {tuple(scale.shape)}; expected one element, {(*x.shape[:-1], 1)} for the rows of this rank, "
        f"or {(*whole, 1)} for the rows of all ranks"
    )


def gather(wholes, shards, group):
    """Starts to gather shards of all ranks as bytes, in one call. Returns its Work."""
    return group.process_group.allgather_into_tensor_coalesced(
        [whole.view(torch.uint8) for whole in wholes], [shard.view(torch.uint8) for shard in shards]
    )


def gemm_reduce_scatter(x, scale, weight, shape, dim, average, group):
    """This rank's part of the sum or average of x · weight over the ranks, scattered in dimension `dim` of `shape`.

    x: [..., k]. scale: one element, or a scale for each row. shape: of the product before it is scattered; its leading
    dimensions are those of x, or x has them flattened.
    """
    group, dim = find_group(group), leading("orig_scatter_dim", dim, len(shape), "output_shape")
    check_weight("B", weight, x)
    dims, ranks = list(shape[:-1]), group.size
    if math.prod(dims) != math.prod(x.shape[:-1]):
        raise InvalidArgument(f"output_shape = {list(shape)} must have as many rows as A, of shape {tuple(x.shape)}")
    if dims[dim] % ranks != 0:
        raise InvalidArgument(
            f"output_shape = {list(shape)}: dimension {dim} must be a multiple of the {ranks} ranks of the group"
        )
    if scale.numel() != 1:
        if list(scale.shape) != [*x.shape[:-1], 1]:
            raise InvalidArgument(
                f"A_scale.shape = {tuple(scale.shape)}; expected one element, or {(*x.shape[:-1], 1)}"
            )
        scale = column(scale.reshape(*dims, 1), dim)
    front = x.reshape(*dims, x.shape[-1]).movedim(dim, 0)
    rows = front.flatten(0, -2).contiguous()
    own, dtype = rows.shape[0] // ranks, weight.dtype
    scattered = (front.shape[0] // ranks, *front.shape[1:-1], weight.matrix.shape[1])
    product = rows.new_empty(rows.shape[0], scattered[-1], dtype=dtype)
    if rows.shape[0] > 0:
        multiply(rows, scale, weight, product)
    product = product if dtype.itemsize > 1 else product.float()  # gloo does not add fp8
    out = product.new_empty(own, scattered[-1])
    dist.reduce_scatter_tensor(out, product, group=group.process_group)
    if average:
        out /= ranks
    return out.to(dtype).view(scattered).movedim(0, dim).contiguous()


def column(scale, dim):
    """Scales [..., 1] as [rows, 1], in the order of rows that have dimension `dim` in front."""
    flat = scale.movedim(dim, 0).flatten().contiguous()
    return (flat if flat.data_ptr() % ALIGNMENT == 0 else flat.clone()).unsqueeze(1)  # so that the last stride is 1


def dtype_of(given, x):
    """The dtype of a result, which is given as dtype, as number, or as None: that of x."""
    if given is None or isinstance(given, torch.dtype):
        return given or x.dtype
    if given not in DTYPES:
        raise InvalidArgument(f"out_dtype = {given} is no ScalarType of torch._scaled_mm's results: {DTYPES}")
    return DTYPES[given]


def leading(name, dim, dims, matrix="A"):
    """The number of a dimension that is not the last."""
    if not -dims <= dim < dims or dim % dims == dims - 1:
        raise InvalidArgument(f"{name} = {dim} must be one of the {dims - 1} leading dimensions of {matrix}")
    return dim % dims


def check_weight(name, weight, x):
    if weight.matrix.dim() != 2 or weight.matrix.shape[0] != x.shape[-1]:
        raise InvalidArgument(
            f"{name}.shape = {tuple(weight.matrix.shape)}; expected [{x.shape[-1]}, out], to multiply A of "
            f"{x.shape[-1]} columns"
        )
