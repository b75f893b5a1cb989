"""The plugin for SGLang's sequence-parallel layers on CPU, with a stand-in for SGLang."""

import os
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import serving_stubs  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ranks import Ranks  # noqa: E402
from test_torch_vllm import run  # noqa: E402

K, N, TOKENS = 8, 6, 5


def layer(bias=None, **fields):
    return types.SimpleNamespace(weight=torch.randn(N, K), bias=bias, **fields)


def layers_case():
    os.environ["SHINGLE_SGLANG"] = "1"
    state = serving_stubs.install_sglang(dist.group.WORLD)
    from sglang.srt.layers import layernorm_sp
    from sglang.srt.plugins.hook_registry import HookRegistry
    from shingle import torch as st
    from shingle.torch import sglang

    before = st.counters()
    sglang.register()
    HookRegistry.apply_hooks()
    layernorm_sp.initialize_layernorm_sp(model_config=None)
    st.configure(min_m=TOKENS)

    own, rank = 3, dist.get_rank()  # 5 tokens on two ranks, padded
    whole, down = torch.randn(TOKENS, K), layer()
    partial = whole * (rank + 1)
    padded = torch.cat([whole, torch.zeros(1, K)])
    for call in (lambda x: layernorm_sp.row_parallel_gbar_matmul(down, x, None),
                 torch.compile(lambda x: layernorm_sp.row_parallel_gbar_matmul(down, x, None), backend="aot_eager",
                               fullgraph=True, dynamic=True)):  # fmt: skip
        torch.testing.assert_close(call(partial), (3 * padded @ down.weight.t())[own * rank :][:own])
    up = layer()
    for call in (lambda x: layernorm_sp.column_parallel_g_matmul(up, x, None),
                 torch.compile(lambda x: layernorm_sp.column_parallel_g_matmul(up, x, None), backend="aot_eager",
                               fullgraph=True, dynamic=True)):  # fmt: skip
        torch.testing.assert_close(call(padded[own * rank :][:own]), whole @ up.weight.t())
    counted = {name: n - before.get(name, 0) for name, n in st.counters().items() if name.startswith("sglang.")}
    assert counted == {"sglang.row_parallel": 1, "sglang.column_parallel": 1}

    for other in (layer(bias=torch.randn(N)), layer(_sp_use_cutlass=True)):
        for call in (layernorm_sp.row_parallel_gbar_matmul, layernorm_sp.column_parallel_g_matmul):
            with pytest.raises(AssertionError, match="SGLang's own"):
                call(other, whole, None)
    st.configure(min_m=512)
    with pytest.raises(AssertionError, match="SGLang's own"):
        layernorm_sp.row_parallel_gbar_matmul(down, whole, None)
    st.configure(min_m=TOKENS)
    state.exec.deterministic.enable_deterministic_inference = True
    with pytest.raises(AssertionError, match="SGLang's own"):
        layernorm_sp.row_parallel_gbar_matmul(down, whole, None)


class Quantised:
    def apply(self, layer, x, bias=None):
        return torch.nn.functional.linear(x, layer.weight, bias)


def sums_case():
    """Without sequence parallelism: layers that sum themselves, each with the number of calls that are served."""
    os.environ["SHINGLE_SGLANG"] = "1"
    state = serving_stubs.install_sglang(dist.group.WORLD, sequence_parallel=False)
    from sglang.srt.layers import linear
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.plugins.hook_registry import HookRegistry
    from shingle import torch as st
    from shingle.torch import sglang
    from shingle.torch.counters import _expected

    own, group = linear.RowParallelLinear.forward, state.parallel.tp_group
    sglang.register()
    HookRegistry.apply_hooks()
    assert linear.RowParallelLinear.forward is own  # until a worker knows that it has no sequence parallelism
    from sglang.srt.distributed.bootstrap import initialize_layernorm_sp

    for _ in range(2):
        initialize_layernorm_sp(model_config=None)
    st.configure(min_m=TOKENS, max_m=TOKENS + 1)

    def serves(wanted, x=torch.randn(TOKENS, K), run=lambda layer: layer, call={}, **options):
        layer = linear.RowParallelLinear(2 * K, N, **options)
        torch.manual_seed(1)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        x, before = x * (dist.get_rank() + 1), st.counters().get("sglang.row_parallel", 0)
        got, expected = run(layer)(x, **call), own(layer, x, **call)
        torch.testing.assert_close(got, expected)
        assert st.counters().get("sglang.row_parallel", 0) - before == wanted, (options, call)
        return layer

    for options in ({}, {"bias": False}, {"skip_bias_add": True}, {"parallel_group": "tp"}):
        serves(1, **options)
    sums = group.all_reduces
    served = serves(1, call={"skip_all_reduce": False, "forward_batch": object()})
    assert group.all_reduces == sums + 2  # its own too if the call is not overlapped
    for x in (torch.randn(TOKENS - 1, K), torch.randn(TOKENS + 2, K)):
        serves(0, x)
    serves(0, call={"skip_all_reduce": True})
    serves(0, call={"output_tensor": torch.empty(TOKENS, N)})
    serves(0, input_is_parallel=False)
    serves(0, use_dp_attention_reduce=True)
    serves(0, torch.randn(TOKENS, 2 * K), parallel_group="replicated")
    serves(0, run=lambda layer: torch.compile(layer, backend="eager"))
    state.forward.mlp_reduce_scatter = True
    serves(0)
    state.forward.mlp_reduce_scatter = False
    state.exec.deterministic.enable_deterministic_inference = True
    serves(0)
    state.exec.deterministic.enable_deterministic_inference = False
    left = [serves(0, reduce_results=False), serves(0, quant_config=Quantised())]

    said = []
    sglang.logger.log = lambda level, text, *values: said.append((level, text % values))
    ModelRunner(torch.nn.Sequential(served, *left)).load_model()
    ModelRunner(torch.nn.Sequential(*left)).load_model()
    (serving, some), (nothing, none) = said
    assert serving < nothing and "serves 1 of the 3 row-parallel" in some and "serves 0 of the 2" in none
    assert _expected.keys() == {("sglang.",)}


@pytest.mark.parametrize("case", [layers_case, sums_case])
def test_layers(case):
    ranks = Ranks(2)
    try:
        ranks.run(case)
    finally:
        ranks.stop()


def test_plugin_does_nothing_unless_it_is_asked_for():
    program = """
import serving_stubs; serving_stubs.install_sglang(sequence_parallel=False)
from shingle.torch.sglang import register
register()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
from sglang.srt.distributed.bootstrap import initialize_layernorm_sp
initialize_layernorm_sp(model_config=None)
print(len(HookRegistry._hooks))
import torch
from sglang.srt.model_executor.model_runner import ModelRunner
ModelRunner(torch.nn.Sequential()).load_model()
"""
    assert run(program, vllm=False) == ("0\n", "")
    hooks, errors = run(program, vllm=False, SHINGLE_SGLANG="1")
    assert hooks == "5\n" and "SHINGLE_SGLANG=1 serves 0 of the 0 row-parallel layers of Sequential" in errors


def test_sequence_parallel_layers_that_are_never_called_warn():
    program = """
import serving_stubs; serving_stubs.install_sglang()
from shingle.torch import sglang
sglang.after_start(None, model_config=None)
"""
    assert "SHINGLE_SGLANG=1 replaced nothing" in run(program, vllm=False)[1]
