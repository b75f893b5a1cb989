"""Registers the ops `torch.ops.shingle.*` on 2-D tensors. `shingle.torch` has the functions to call.

Ops are functional, name their group, and take tensors by position, because autograd refuses keyword-only ones.
"""

import functools

import torch

from . import experts, gradients, outputs, overlapped, overlapped_attention, overlapped_gradients, sequential
from .experts import kernels
from .groups import find_group
from .shapes import all_rows, split_table

library = torch.library.Library("shingle", "FRAGMENT")
HOST_READS = (torch.Tag.cudagraph_unsafe,)  # the tags of ops whose launches depend on what the host reads
AUTOCAST = {"CPU": "AutocastCPU", "CUDA": "AutocastCUDA"}


def define(name, schema, *, cuda, cpu, backward=None, setup=None, casts=True, fake=None, keeps=(), tags=()):
    """Defines an op: kernels for both devices, the fake kernel of `outputs`, autograd and autocast.

    casts: false for an op whose tensors have the right dtypes also under autocast. keeps: positions of arguments that
    autocast leaves as they are. fake: instead of that of `outputs`; the kernels then check their arguments themselves.
    """
    library.define(name + schema, tags=(torch.Tag.needs_fixed_stride_order, torch.Tag.pt2_compliant_tag, *tags))
    op, check = getattr(torch.ops.shingle, name).default, getattr(outputs, name)
    library.impl(name, cuda, "CUDA")
    library.impl(name, cpu if fake else checked(check, cpu), "CPU")
    torch.library.register_fake(f"shingle::{name}", fake or check, lib=library)
    if backward is not None:
        torch.library.register_autograd(f"shingle::{name}", backward, setup_context=setup, lib=library)
    for device, key in AUTOCAST.items() if casts else ():
        library.impl(name, autocast(op, device.lower(), key, keeps), key)


def checked(check, kernel):
    @functools.wraps(kernel)
    def run(*args):
        check(*args)
        return kernel(*args)

    return run


def autocast(op, device, key, keeps):
    """Casts tensors of the device to autocast's dtype, as for torch.mm."""
    below = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast(value):
        if isinstance(value, list):
            return [cast(item) for item in value]
        eligible = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(torch.get_autocast_dtype(device)) if eligible else value

    def run(*args):
        with torch._C._ExcludeDispatchKeyGuard(below):
            return op(*(arg if at in keeps else cast(arg) for at, arg in enumerate(args)))

    return run


def fake_moe(x, w_up, w_down, topk_ids, topk_weights, group, *options):
    out, group = outputs.moe(x, w_up, w_down, topk_ids, topk_weights, group, *options), find_group(group)
    words = torch.library.get_ctx().new_dynamic_size()  # of a rank's routing: it depends on the tokens of all ranks
    return out, torch.empty(group.size, words, dtype=torch.int32, device="cpu")


def all_gather(x, group, rows=None):
    group = find_group(group)
    return sequential.all_gather(x, all_rows(x, rows, group), group)


def reduce_scatter(x, group):
    return sequential.reduce_scatter(x, find_group(group))


def all_to_all(x, group, splits):
    group = find_group(group)
    return sequential.all_to_all(x, split_table(splits, group), group)


for name, schema, kernel in (
    ("all_gather", "(Tensor x, str group, SymInt? rows=None) -> Tensor", all_gather),
    ("reduce_scatter", "(Tensor x, str group) -> Tensor", reduce_scatter),
    ("all_to_all", "(Tensor x, str group, SymInt[] splits) -> Tensor", all_to_all),
):
    define(name, schema, cuda=kernel, cpu=kernel)

define(
    "gather_gradients",
    "(Tensor grad, Tensor x, Tensor w, str group, bool bias) -> (Tensor, Tensor, Tensor)",
    cuda=overlapped.gather_gradients, cpu=sequential.gather_gradients,
)  # fmt: skip

define(
    "scatter_gradients",
    "(Tensor[] grads, Tensor x, Tensor[] ws, str group) -> (Tensor, Tensor[])",
    cuda=overlapped_gradients.scatter_gradients, cpu=sequential.scatter_gradients,
)  # fmt: skip

define(
    "ulysses_gradients",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, str group, int head_dim, bool causal, SymInt? rows,"
    " Tensor? cu_seqlens=None) -> (Tensor, Tensor, Tensor)",
    cuda=overlapped_attention.ulysses_gradients, cpu=sequential.ulysses_gradients,
)  # fmt: skip

define(
    "attention_gradients",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, int head_dim, bool causal, Tensor? cu_seqlens=None)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    cuda=sequential.attention_gradients, cpu=sequential.attention_gradients,
)  # fmt: skip

define(
    "ring_gradients",
    "(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? out, Tensor? lse, str group, int head_dim, bool causal,"
    " bool zigzag, SymInt? rows, Tensor? cu_seqlens=None) -> (Tensor, Tensor, Tensor)",
    cuda=overlapped_attention.ring_gradients, cpu=sequential.ring_gradients, casts=False,
)  # fmt: skip

for name, schema, setup in (
    (
        "gemm_reduce_scatter",
        "(Tensor x, Tensor w, str group, Tensor? bias=None, str? activation=None) -> Tensor",
        gradients.setup_gemm_reduce_scatter,
    ),
    ("gemm_all_reduce", "(Tensor x, Tensor w, str group, Tensor? bias=None) -> Tensor", gradients.setup_gemm),
    (
        "gemm_all_reduce_norm",
        "(Tensor x, Tensor w, Tensor residual, Tensor norm_weight, str group, Tensor? bias=None, float eps=1e-05)"
        " -> (Tensor, Tensor)",
        gradients.setup_gemm_all_reduce_norm,
    ),
    (
        "all_gather_gemm",
        "(Tensor x, Tensor[] ws, str group, SymInt? rows=None, bool return_gathered=False) -> (Tensor, Tensor[])",
        gradients.setup_all_gather_gemm,
    ),
    ("replicated_gemm", "(Tensor x, Tensor w, str group) -> Tensor", gradients.setup_gemm),
    ("all_to_all_gemm", "(Tensor x, Tensor w, str group, SymInt[] splits) -> Tensor", gradients.setup_all_to_all),
    ("gemm_all_to_all", "(Tensor x, Tensor w, str group, SymInt[] splits) -> Tensor", gradients.setup_all_to_all),
    (
        "attention_reduce_scatter",
        "(Tensor q, Tensor k, Tensor v, Tensor w, str group, int head_dim, bool causal=False,"
        " Tensor? cu_seqlens=None) -> Tensor",
        gradients.setup_attention_reduce_scatter,
    ),
    (
        "ulysses_attention",
        "(Tensor q, Tensor k, Tensor v, str group, int head_dim, bool causal=False, SymInt? rows=None,"
        " Tensor? cu_seqlens=None) -> Tensor",
        gradients.setup_attention,
    ),
    (
        "ring_attention",
        "(Tensor q, Tensor k, Tensor v, str group, int head_dim, bool causal=False, bool zigzag=False,"
        " SymInt? rows=None, Tensor? cu_seqlens=None) -> Tensor",
        gradients.setup_attention,
    ),
    (
        "ring_attention_with_lse",
        "(Tensor q, Tensor k, Tensor v, str group, int head_dim, bool causal=False, bool zigzag=False,"
        " SymInt? rows=None, Tensor? cu_seqlens=None) -> (Tensor, Tensor)",
        gradients.setup_ring_attention_with_lse,
    ),
    (
        "mlp",
        "(Tensor x, Tensor up, Tensor down, str group, str? activation=None, SymInt? rows=None) -> Tensor",
        gradients.setup_mlp,
    ),
):
    on_cuda = overlapped_attention if "attention" in name else overlapped
    define(
        name, schema, cuda=getattr(on_cuda, name), cpu=getattr(sequential, name),
        backward=getattr(gradients, name), setup=setup,
    )  # fmt: skip

define(
    "moe_gradients",
    "(Tensor grad, Tensor x, Tensor w_up, Tensor w_down, Tensor topk_weights, Tensor routing, str group,"
    " str? activation, bool tensor_parallel, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    cuda=functools.partial(kernels.moe_gradients, experts.overlapped),
    cpu=functools.partial(kernels.moe_gradients, experts.sequential), casts=False, tags=HOST_READS,
)  # fmt: skip

define(
    "moe_with_capacity_gradients",
    "(Tensor grad, Tensor x, Tensor w_up, Tensor w_down, Tensor topk_ids, Tensor topk_weights, str group,"
    " str? activation, int capacity, SymInt? max_tokens, bool tensor_parallel, bool replicated, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    cuda=functools.partial(kernels.moe_with_capacity_gradients, experts.overlapped),
    cpu=functools.partial(kernels.moe_with_capacity_gradients, experts.sequential), casts=False,
)  # fmt: skip

define(
    "moe_with_capacity",
    "(Tensor x, Tensor w_up, Tensor w_down, Tensor topk_ids, Tensor topk_weights, str group, str? activation,"
    " int capacity, SymInt? max_tokens=None, bool tensor_parallel=False, bool replicated=False)"
    " -> (Tensor, Tensor)",
    cuda=functools.partial(kernels.moe_with_capacity, experts.overlapped),
    cpu=functools.partial(kernels.moe_with_capacity, experts.sequential),
    backward=gradients.moe_with_capacity, setup=gradients.setup_moe_with_capacity, keeps=(4,),
)  # fmt: skip

define(
    "moe",
    "(Tensor x, Tensor w_up, Tensor w_down, Tensor topk_ids, Tensor topk_weights, str group, str? activation,"
    " bool tensor_parallel) -> (Tensor, Tensor)",
    cuda=functools.partial(kernels.moe, experts.overlapped), cpu=functools.partial(kernels.moe, experts.sequential),
    backward=gradients.moe, setup=gradients.setup_moe, fake=fake_moe, keeps=(4,),
    tags=HOST_READS,
)  # fmt: skip
