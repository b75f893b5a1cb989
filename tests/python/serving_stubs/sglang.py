"""SGLang 0.5.23."""

import enum
import pkgutil
import sys
import types
import weakref

from .modules import module
from .sglang_experts import install_experts


class HookType(enum.Enum):
    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


class HookRegistry:
    _hooks: dict[str, list[tuple]] = {}
    _patched: set[str] = set()

    @classmethod
    def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
        cls._hooks.setdefault(target, []).append((hook_type, hook, source))

    @classmethod
    def apply_hooks(cls):
        for target, hooks in sorted(cls._hooks.items()):
            if target in cls._patched:
                continue
            above, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(above)
            wrapped = original = getattr(owner, name)
            for hook_type, hook, _ in hooks:
                wrapped = wrap(wrapped, hook, hook_type)
            setattr(owner, name, wrapped)
            for other in list(sys.modules.values()):  # those that imported the name
                for attribute, value in list(vars(other).items()):
                    if value is original:
                        setattr(other, attribute, wrapped)
            cls._patched.add(target)


def wrap(original, hook, hook_type):
    def around(*args, **kwargs):
        return hook(original, *args, **kwargs)

    def after(*args, **kwargs):
        result = original(*args, **kwargs)
        modified = hook(result, *args, **kwargs)
        return modified if modified is not None else result

    return {HookType.AROUND: around, HookType.AFTER: after}[hook_type]


class GroupCoordinator:
    """A group of all ranks, or of this process alone. Its sums run on the CPU group."""

    def __init__(self, unique_name, device_group=None):
        from sglang.srt.distributed import parallel_state

        self.unique_name, self.device_group, self.all_reduces = unique_name, device_group, 0
        self.world_size = 1 if device_group is None else device_group.size()
        self.rank_in_group = 0 if device_group is None else device_group.rank()
        parallel_state._groups[unique_name] = weakref.ref(self)

    def all_reduce(self, input_):
        import torch.distributed as dist

        self.all_reduces += 1
        if self.world_size > 1:
            dist.all_reduce(input_, group=self.device_group)
        return input_


def own(*_):
    raise AssertionError("SGLang's own")


def install_sglang(device_group=None, sequence_parallel=True):
    """Puts sglang into sys.modules. Sequence-parallel functions that reach the original raise AssertionError.

    Returns the state of the runtime: parallel, forward and exec.
    """
    module("sglang.srt.plugins.hook_registry", HookRegistry=HookRegistry, HookType=HookType)
    module("sglang.srt.distributed.parallel_state", _groups={})
    group = GroupCoordinator("tp:0", device_group)
    state = types.SimpleNamespace(
        parallel=types.SimpleNamespace(tp_group=group, attn_tp_group=group),
        forward=types.SimpleNamespace(sp_active=False, mlp_reduce_scatter=False),
        exec=types.SimpleNamespace(deterministic=types.SimpleNamespace(enable_deterministic_inference=False)),
    )
    module(
        "sglang.srt.runtime_context", get_parallel=lambda: state.parallel, get_forward=lambda: state.forward,
        get_exec=lambda: state.exec,
    )  # fmt: skip

    def initialize_layernorm_sp(*, model_config):
        pass

    module(
        "sglang.srt.layers.layernorm_sp", column_parallel_g_matmul=lambda linear, input_parallel, bias: own(),
        row_parallel_gbar_matmul=lambda linear, input_, bias: own(), initialize_layernorm_sp=initialize_layernorm_sp,
        layernorm_sp_enabled=lambda: sequence_parallel, sp_fused_matmul_eligible=lambda linear: linear.bias is None,
        sp_num_tokens=lambda: 5,
    )  # fmt: skip
    module("sglang.srt.distributed.bootstrap", initialize_layernorm_sp=initialize_layernorm_sp)
    install_layers()
    install_experts()
    return state


def install_layers():
    import torch
    from sglang.srt.layers import layernorm_sp
    from sglang.srt.runtime_context import get_forward, get_parallel

    class UnquantizedLinearMethod:
        def apply(self, layer, x, bias=None):
            return torch.nn.functional.linear(x, layer.weight, bias)

    class RowParallelLinear(torch.nn.Module):
        """A quant_config is the quant_method here."""

        def __init__(self, input_size, output_size, bias=True, input_is_parallel=True, skip_bias_add=False,
                     params_dtype=None, reduce_results=True, quant_config=None, prefix="", *,
                     use_presharded_weights=False, use_dp_attention_reduce=False, parallel_group=None):  # fmt: skip
            super().__init__()
            self.tp_group = None if parallel_group == "replicated" else get_parallel().tp_group
            self.parallel_group, self.skip_bias_add = parallel_group, skip_bias_add
            self.input_is_parallel, self.reduce_results = input_is_parallel, reduce_results
            self.use_dp_attention_reduce, self.use_decode_attn_tp = use_dp_attention_reduce, False
            self.quant_method = quant_config or UnquantizedLinearMethod()
            size = self.tp_group.world_size if self.tp_group else 1
            self.weight = torch.nn.Parameter(torch.empty(output_size, input_size // size), requires_grad=False)
            if bias:
                self.bias = torch.nn.Parameter(torch.zeros(output_size), requires_grad=False)
            else:
                self.register_parameter("bias", None)

        def forward(self, input_, skip_all_reduce=False, forward_batch=None, output_tensor=None):
            rank, size = (self.tp_group.rank_in_group, self.tp_group.world_size) if self.tp_group else (0, 1)
            bias = None if rank > 0 or self.skip_bias_add else self.bias
            if get_forward().sp_active and size > 1 and not skip_all_reduce and output_tensor is None:
                output = layernorm_sp.row_parallel_gbar_matmul(self, input_, bias)
            else:
                output = self.quant_method.apply(self, input_, bias=bias)
                if output_tensor is not None:
                    output = output_tensor.copy_(output)
                sums = self.reduce_results and size > 1 or self.use_decode_attn_tp
                if sums and not skip_all_reduce and not get_forward().mlp_reduce_scatter:
                    output = get_parallel().tp_group.all_reduce(output)
            return output, self.bias if self.skip_bias_add else None

    class ModelRunner:
        def __init__(self, model):
            self.made = model

        def load_model(self):
            self.model = self.made

    module("sglang.srt.layers.quantization.unquant", UnquantizedLinearMethod=UnquantizedLinearMethod)
    module("sglang.srt.layers.linear", RowParallelLinear=RowParallelLinear)
    module("sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
