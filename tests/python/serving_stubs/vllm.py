"""vLLM 0.33.0."""

import contextlib
import json
import sys
import types
import weakref

from .modules import module
from .vllm_experts import install_experts


class Range:
    def __init__(self, start, end):
        self.start, self.end = start, end

    def __str__(self):
        return f"({self.start}, {self.end})"


class CompilationConfig:
    def __init__(self, inductor_passes=None, compile_ranges_endpoints=None):
        self.inductor_compile_config, self.compile_ranges_endpoints = {}, compile_ranges_endpoints
        for key, name in (inductor_passes or {}).items():
            module_name, _, attribute = name.rpartition(".")
            self.inductor_compile_config[key] = __import__(module_name).__dict__[attribute]

    def get_compile_ranges(self):
        ends = sorted(set(self.compile_ranges_endpoints))
        return [Range(start + 1, end) for start, end in zip([0, *ends[:-1]], ends)]


class VllmConfig:
    def __init__(self, tensor_parallel_size, compilation_config=None, max_num_batched_tokens=8192):
        self.parallel_config = types.SimpleNamespace(tensor_parallel_size=tensor_parallel_size)
        self.scheduler_config = types.SimpleNamespace(max_num_batched_tokens=max_num_batched_tokens)
        self.compilation_config = compilation_config or CompilationConfig()
        self._set_compile_ranges()

    def _set_compile_ranges(self):
        end, compilation = self.scheduler_config.max_num_batched_tokens, self.compilation_config
        others = [x for x in compilation.compile_ranges_endpoints or () if 1 < x < end]
        compilation.compile_ranges_endpoints = sorted([end, *others])


class GroupCoordinator:
    """A group under a name of vLLM's, as long as the object lives. Ops run on the CPU group."""

    def __init__(self, name, cpu_group, device_group):
        from vllm.distributed import parallel_state

        self.unique_name, self.cpu_group, self.device_group, self.all_reduces = name, cpu_group, device_group, 0
        parallel_state._groups[name] = weakref.ref(self)

    @property
    def world_size(self):
        return self.cpu_group.size()

    @property
    def rank_in_group(self):
        return self.cpu_group.rank()

    def all_reduce(self, input_):
        import torch

        return input_ if self.world_size == 1 else torch.ops.vllm.all_reduce(input_, group_name=self.unique_name)


def get_tp_group():
    from vllm.distributed import parallel_state

    return parallel_state._TP


class PassContext:
    def __init__(self, compile_range):
        self.compile_range = compile_range


def install_vllm():
    """Puts vllm into sys.modules, and defines torch.ops.vllm and torch.ops.vllm_ir. Once a process."""
    if "vllm" in sys.modules:
        return
    install_passes()
    module("vllm.config", VllmConfig=VllmConfig, CompilationConfig=CompilationConfig)
    module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    module("vllm.distributed.parallel_state", _groups={}, _TP=None, get_tp_group=get_tp_group)
    install_layers()
    install_experts()
    define_ops()


def install_passes():
    from torch._inductor.custom_graph_pass import CustomGraphPass

    def get_pass_context():
        return inductor_pass._pass_context

    @contextlib.contextmanager
    def pass_context(compile_range):
        before, inductor_pass._pass_context = inductor_pass._pass_context, PassContext(compile_range)
        try:
            yield
        finally:
            inductor_pass._pass_context = before

    class InductorPass(CustomGraphPass):
        def uuid(self):
            raise AssertionError("the pass has its own")

        def is_applicable_for_range(self, compile_range):
            return True

    class PostGradPassManager(CustomGraphPass):
        def __init__(self):
            self.passes = []

        def __call__(self, graph):
            compile_range = get_pass_context().compile_range
            for pass_ in self.passes:
                if pass_.is_applicable_for_range(compile_range):
                    pass_(graph)

        def add(self, pass_):
            assert isinstance(pass_, InductorPass)
            self.passes.append(pass_)

        def uuid(self):
            return json.dumps([str(get_pass_context().compile_range), *(pass_.uuid() for pass_ in self.passes)])

    inductor_pass = module(
        "vllm.compilation.passes.inductor_pass", InductorPass=InductorPass, PassContext=PassContext,
        get_pass_context=get_pass_context, pass_context=pass_context, _pass_context=None,
    )  # fmt: skip
    module("vllm.compilation.passes.pass_manager", PostGradPassManager=PostGradPassManager)


def install_layers():
    import torch

    op_registry_oot = {}

    class PluggableLayer(torch.nn.Module):
        def __new__(cls, *args, **kwargs):
            return super().__new__(op_registry_oot.get(cls.__name__, cls))

        @classmethod
        def register_oot(cls, _decorated_layer_cls=None, name=None):
            def decorator(layer_cls):
                registered = name if name is not None else cls.__name__
                assert registered not in op_registry_oot
                op_registry_oot[registered] = layer_cls
                return layer_cls

            return decorator if _decorated_layer_cls is None else decorator(_decorated_layer_cls)

    class UnquantizedLinearMethod:
        def apply(self, layer, x, bias=None):
            return torch.nn.functional.linear(x, layer.weight, bias)

    class RowParallelLinear(PluggableLayer):
        """A quant_config is the quant_method here."""

        def __init__(self, input_size, output_size, bias=True, input_is_parallel=True, skip_bias_add=False,
                     params_dtype=None, reduce_results=True, quant_config=None, prefix="", *, return_bias=True,
                     disable_tp=False):  # fmt: skip
            super().__init__()
            self.tp_rank = 0 if disable_tp else get_tp_group().rank_in_group
            self.tp_size = 1 if disable_tp else get_tp_group().world_size
            self.input_size_per_partition = input_size // self.tp_size
            self.input_size, self.output_size, self.skip_bias_add = input_size, output_size, skip_bias_add
            self.input_is_parallel, self.reduce_results = input_is_parallel, reduce_results
            self.quant_method, self.return_bias = quant_config or UnquantizedLinearMethod(), return_bias
            weight = torch.empty(output_size, self.input_size_per_partition, dtype=params_dtype)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            if bias:
                bias = torch.empty(output_size, dtype=params_dtype)
                self.bias = torch.nn.Parameter(bias, requires_grad=False)
            else:
                self.register_parameter("bias", None)

        def forward(self, input_):
            bias = None if self.tp_rank > 0 or self.skip_bias_add else self.bias
            output = self.quant_method.apply(self, input_, bias)
            if self.reduce_results and self.tp_size > 1:
                output = get_tp_group().all_reduce(output)
            return (output, self.bias if self.skip_bias_add else None) if self.return_bias else output

    module("vllm.model_executor.custom_op", PluggableLayer=PluggableLayer, op_registry_oot=op_registry_oot)
    module(
        "vllm.model_executor.layers.linear", RowParallelLinear=RowParallelLinear,
        UnquantizedLinearMethod=UnquantizedLinearMethod,
    )  # fmt: skip


def define_ops():
    import torch
    import torch.distributed as dist
    from vllm.distributed import parallel_state

    global libraries
    library, norms = libraries = torch.library.Library("vllm", "FRAGMENT"), torch.library.Library("vllm_ir", "FRAGMENT")

    def all_reduce(tensor, group_name):
        group = parallel_state._groups[group_name]()
        group.all_reduces += 1
        out = tensor.clone()
        dist.all_reduce(out, group=group.cpu_group)
        return out

    def reduce_scatter(tensor, dim, world_size, group_name):
        whole = all_reduce(tensor, group_name)
        return whole.chunk(world_size, dim)[dist.get_rank()].clone()

    def all_gather(tensor, dim, world_size, group_name):
        outs = [torch.empty_like(tensor) for _ in range(world_size)]
        dist.all_gather(outs, tensor.contiguous(), group=parallel_state._groups[group_name]().cpu_group)
        return torch.cat(outs, dim)

    def reduce_scatter_fake(tensor, dim, world_size, group_name):
        shape = list(tensor.shape)
        shape[dim] //= world_size
        return tensor.new_empty(shape)

    def all_gather_fake(tensor, dim, world_size, group_name):
        shape = list(tensor.shape)
        shape[dim] *= world_size
        return tensor.new_empty(shape)

    def fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size=None):
        total = x.float() + x_residual.float()
        unit = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + epsilon)
        return (unit.to(weight.dtype) * weight).to(x.dtype), total.to(x.dtype)

    for name, schema, kernel, fake in (
        ("all_reduce", "(Tensor tensor, str group_name) -> Tensor", all_reduce, lambda x, group_name: x.clone()),
        ("reduce_scatter", "(Tensor tensor, SymInt dim, SymInt world_size, str group_name) -> Tensor", reduce_scatter,
         reduce_scatter_fake),
        ("all_gather", "(Tensor tensor, SymInt dim, SymInt world_size, str group_name) -> Tensor", all_gather,
         all_gather_fake),
    ):  # fmt: skip
        library.define(name + schema)
        library.impl(name, kernel, "CPU")
        library._register_fake(name, fake)
    norms.define(
        "fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor? weight, float epsilon, SymInt? variance_size=None)"
        " -> (Tensor, Tensor)"
    )
    norms.impl("fused_add_rms_norm", fused_add_rms_norm, "CPU")
    norms._register_fake("fused_add_rms_norm", lambda x, residual, *_: (torch.empty_like(x), torch.empty_like(x)))
