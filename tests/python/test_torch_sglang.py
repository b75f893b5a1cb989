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
    group = serving_stubs.install_sglang()
    group.world_size, group.device_group = dist.get_world_size(), dist.group.WORLD
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


def test_layers():
    ranks = Ranks(2)
    try:
        ranks.run(layers_case)
    finally:
        ranks.stop()


def test_plugin_does_nothing_unless_it_is_asked_for():
    program = """
import serving_stubs; serving_stubs.install_sglang(enabled=False)
from shingle.torch.sglang import register
register()
from sglang.srt.plugins.hook_registry import HookRegistry
print(sorted(HookRegistry.hooks))
HookRegistry.apply_hooks()
from sglang.srt.layers import layernorm_sp
layernorm_sp.initialize_layernorm_sp(model_config=None)
"""
    assert run(program, vllm=False) == ("[]\n", "")
    hooks, errors = run(program, vllm=False, SHINGLE_SGLANG="1")
    assert hooks.count("layernorm_sp.") == 3 and "start SGLang with --enable-layernorm-sp" in errors


def test_layers_that_are_never_called_warn():
    program = """
import serving_stubs; serving_stubs.install_sglang()
from shingle.torch import sglang
sglang.after_start(None, model_config=None)
"""
    assert "SHINGLE_SGLANG=1 replaced nothing" in run(program, vllm=False)[1]
