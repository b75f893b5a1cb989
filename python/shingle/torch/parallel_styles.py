"""Forwards of nn.Linear on the ops. Parameters are DTensors of one mesh dimension.

dtensor and transformers install them.
"""

import functools

from torch.distributed.tensor import DTensor, Replicate, Shard

from . import functional


def is_even(module, mesh):
    """True if every rank holds equally many features, as the ops need."""
    return module.in_features % mesh.size() == 0 and module.out_features % mesh.size() == 0


def as_layout(x, mesh, placement):
    """The local part of x in a layout. A plain tensor is taken to be that part."""
    if not isinstance(x, DTensor):
        return x
    return (x if x.placements == (placement,) else x.redistribute(mesh, (placement,))).to_local()


def local(parameter):
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def result(out, mesh, placement, use_local_output):
    return out if use_local_output else DTensor.from_local(out, mesh, (placement,), run_check=False)


def rowwise(module, mesh, output_layout, use_local_output, x):
    """x is sharded in its last dimension; the sum is reduced (Replicate) or scattered (Shard of another dimension)."""
    rows, group, bias = as_layout(x, mesh, Shard(-1)), mesh.get_group().group_name, local(module.bias)
    if isinstance(output_layout, Replicate):
        out = functional.gemm_all_reduce(rows, local(module.weight), group, bias=bias)
    else:
        out = functional.gemm_reduce_scatter(rows, local(module.weight), group, bias=bias, dim=output_layout.dim)
    return result(out, mesh, output_layout, use_local_output)


def colwise(module, mesh, input_layout, use_local_output, x):
    """x is replicated, or sharded in a dimension but the last and then gathered; the result is sharded in the last."""
    rows, group = as_layout(x, mesh, input_layout), mesh.get_group().group_name
    if isinstance(input_layout, Replicate):
        out = functional.replicated_gemm(rows, local(module.weight), group)
    else:
        # A DTensor knows the rows of all ranks, which may hold different numbers.
        whole = x.shape[0] if isinstance(x, DTensor) and x.dim() == 2 and input_layout.dim == 0 else None
        (out,) = functional.all_gather_gemm(
            rows, [local(module.weight)], group, rows=whole, dim=input_layout.dim
        )
    out = out if module.bias is None else out + local(module.bias).to(out.dtype)
    return result(out, mesh, Shard(-1), use_local_output)


def is_leading(layout):
    """True for Replicate, and for Shard of a dimension that is not the last."""
    return isinstance(layout, Replicate) or (type(layout) is Shard and layout.dim >= 0)


def install(module, forward, *options):
    module.forward = functools.partial(forward, module, *options)
    return module
