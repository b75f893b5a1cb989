"""Stand-ins for the parts of vLLM 0.33 and SGLang 0.5.23 that shingle.torch.vllm and shingle.torch.sglang use.

Names, signatures and order of calls are theirs. Ops run on CPU by gloo.
"""

import importlib.machinery
import json
import sys
import types
import weakref


def module(name, **contents):
    made = types.ModuleType(name)
    made.__spec__, made.__path__ = importlib.machinery.ModuleSpec(name, None), []
    made.__dict__.update(contents)
    sys.modules[name] = made
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, made)
    return made


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
        self.max_num_batched_tokens = max_num_batched_tokens
        self.compilation_config = compilation_config or CompilationConfig()
        self._set_compile_ranges()

    def _set_compile_ranges(self):
        end, compilation = self.max_num_batched_tokens, self.compilation_config
        others = [x for x in compilation.compile_ranges_endpoints or () if 1 < x < end]
        compilation.compile_ranges_endpoints = sorted([end, *others])


def install_vllm():
    """Puts vllm into sys.modules, and defines torch.ops.vllm and torch.ops.vllm_ir. Once a process."""
    if "vllm" in sys.modules:
        return
    import torch
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class InductorPass(CustomGraphPass):
        def uuid(self):
            raise AssertionError("the pass has its own")

        def is_applicable_for_range(self, compile_range):
            return True

    class PostGradPassManager(CustomGraphPass):
        compile_range = Range(513, 8192)

        def __init__(self, config):
            self.passes = []
            self.add(config["post_grad_custom_post_pass"])

        def add(self, pass_):
            assert isinstance(pass_, InductorPass)
            self.passes.append(pass_)

        def __call__(self, graph):
            for pass_ in self.passes:
                if pass_.is_applicable_for_range(self.compile_range):
                    pass_(graph)

        def uuid(self):
            return json.dumps([str(self.compile_range), *(pass_.uuid() for pass_ in self.passes)])

    class RowParallelLinear(torch.nn.Module):
        def __init__(self, input_size, output_size, bias, tp_size, skip_bias_add=False):
            super().__init__()
            self.tp_size, self.skip_bias_add = tp_size, skip_bias_add
            self.output_size, self.input_size_per_partition = output_size, input_size // tp_size
            if bias:
                self.bias = torch.nn.Parameter(torch.zeros(output_size))
            else:
                self.register_parameter("bias", None)

    RowParallelLinear.__module__ = "vllm.model_executor.layers.linear"
    module("vllm")
    for name in ("compilation", "compilation.passes", "distributed", "model_executor", "model_executor.layers"):
        module(f"vllm.{name}")
    module("vllm.compilation.passes.inductor_pass", InductorPass=InductorPass)
    module("vllm.compilation.passes.pass_manager", PostGradPassManager=PostGradPassManager)
    module("vllm.config", VllmConfig=VllmConfig, CompilationConfig=CompilationConfig)
    module("vllm.distributed.parallel_state", _groups={})
    module("vllm.model_executor.layers.linear", RowParallelLinear=RowParallelLinear)
    define_ops(torch)


class GroupCoordinator:
    """A group under a name of vLLM's, as long as the object lives. Ops run on the CPU group."""

    def __init__(self, name, cpu_group, device_group):
        from vllm.distributed import parallel_state

        self.unique_name, self.cpu_group, self.device_group, self.all_reduces = name, cpu_group, device_group, 0
        parallel_state._groups[name] = weakref.ref(self)


def define_ops(torch):
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


class HookRegistry:
    hooks: dict[str, tuple] = {}

    @classmethod
    def register(cls, target, hook, hook_type, *, source=None):
        cls.hooks[target] = hook, hook_type

    @classmethod
    def apply_hooks(cls):
        for target, (hook, kind) in cls.hooks.items():
            above, _, name = target.rpartition(".")
            original = getattr(sys.modules[above], name)

            def wrapped(*args, hook=hook, kind=kind, original=original, **options):
                if kind == "around":
                    return hook(original, *args, **options)
                result = original(*args, **options)
                changed = hook(result, *args, **options)
                return result if changed is None else changed

            setattr(sys.modules[above], name, wrapped)


def install_sglang(enabled=True):
    """Puts sglang into sys.modules. Layers that reach the original functions raise AssertionError."""

    def original(*_):
        raise AssertionError("SGLang's own")

    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.plugins"):
        module(name)
    module(
        "sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry,
        HookType=types.SimpleNamespace(AROUND="around", AFTER="after", REPLACE="replace"),
    )  # fmt: skip
    parallel = types.SimpleNamespace(tp_group=types.SimpleNamespace(world_size=1, device_group=None))
    module("sglang.srt.runtime_context", get_parallel=lambda: parallel)
    module(
        "sglang.srt.layers.layernorm_sp", column_parallel_g_matmul=original, row_parallel_gbar_matmul=original,
        initialize_layernorm_sp=lambda *, model_config: None, layernorm_sp_enabled=lambda: enabled,
        sp_fused_matmul_eligible=lambda linear: linear.bias is None, sp_num_tokens=lambda: 5,
    )  # fmt: skip
    return parallel.tp_group
