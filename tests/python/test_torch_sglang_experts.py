"""SGLang's mixture-of-experts layers by fused_moe on CPU, with a stand-in for SGLang."""

import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import serving_stubs  # noqa: E402
import torch.distributed as dist  # noqa: E402
from ranks import Ranks  # noqa: E402
from test_torch_vllm import run  # noqa: E402

HIDDEN, INNER, EXPERTS, TOPK, TOKENS = 16, 12, 6, 2, 9


class Quantised:
    def apply(self, layer, x, topk_output):
        from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

        return UnquantizedFusedMoEMethod().apply(layer, x, topk_output)


def experts_case():
    """Layers, each with the number of calls that are served."""
    os.environ["SHINGLE_SGLANG"] = "1"
    state = serving_stubs.install_sglang(dist.group.WORLD, sequence_parallel=False)
    from serving_stubs.sglang_experts import Backend
    from sglang.srt.layers import moe
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE
    from sglang.srt.layers.moe.topk import BypassedTopKOutput, StandardTopKOutput
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.plugins.hook_registry import HookRegistry
    from shingle import torch as st
    from shingle.torch import sglang

    own = FusedMoE.forward_impl
    st.configure(min_m=TOKENS, max_m=TOKENS + 1, serve_experts=True)
    sglang.register()
    HookRegistry.apply_hooks()
    from sglang.srt.distributed.bootstrap import initialize_layernorm_sp

    initialize_layernorm_sp(model_config=None)

    def serves(wanted, tokens=TOKENS, dtype=torch.float32, output=StandardTopKOutput, change={}, given=(), **options):
        options = {"reduce_results": True} | options
        ranks = dist.get_world_size()
        layer = FusedMoE(EXPERTS, HIDDEN, INNER * ranks, 0, top_k=TOPK, params_dtype=dtype, **options)
        vars(layer).update(change)
        torch.manual_seed(dist.get_rank())
        for weight in layer.parameters():
            torch.nn.init.normal_(weight)
        torch.manual_seed(7)
        x, logits = torch.randn(tokens, HIDDEN, dtype=dtype), torch.randn(tokens, EXPERTS)
        weights, ids = logits.softmax(-1).topk(TOPK)
        ids[-1] = -1  # SGLang's padding
        topk, before = output(weights, ids.int(), logits), st.counters().get("sglang.experts", 0)
        got, expected = layer(x, topk, *given), own(layer, x, topk, *given)
        atol = 4 * torch.finfo(dtype).eps * expected.abs().max().item()
        torch.testing.assert_close(got, expected, rtol=0, atol=atol)
        assert st.counters().get("sglang.experts", 0) - before == wanted, (options, change)
        return layer

    served = [serves(1), serves(1, TOKENS + 1), serves(1, dtype=torch.bfloat16), serves(1, routed_scaling_factor=1.0)]
    for tokens in (TOKENS - 1, TOKENS + 2):
        serves(0, tokens)
    serves(0, output=BypassedTopKOutput)
    serves(0, given=(object(),))
    left = [serves(0, **options) for options in (
        {"reduce_results": False}, {"quant_method": Quantised()}, {"activation": "gelu"}, {"is_gated": False},
        {"with_bias": True}, {"gemm1_alpha": 1.7}, {"swiglu_limit": 7.0}, {"gemm1_clamp_limit": 7.0},
        {"apply_router_weight_on_input": True}, {"no_combine": True}, {"routed_scaling_factor": 2.5},
        {"change": {"runner_backend": Backend.FLASHINFER_CUTLASS}}, {"change": {"runner_backend": None}},
        {"change": {"moe_ep_size": 2, "moe_tp_size": 1}}, {"change": {"_dwdp_bound": True}},
        {"change": {"run_moe_core": lambda x, topk: x}},
    )]  # fmt: skip
    interleaved = Quantised()
    interleaved.w13_swiglu_interleaved = True
    serves(0, quant_method=interleaved)
    moe.a2a_backend = Backend.TRITON
    serves(0)
    moe.a2a_backend = Backend.NONE
    state.exec.deterministic.enable_deterministic_inference = True
    serves(0)
    state.exec.deterministic.enable_deterministic_inference = False

    said = []
    sglang.logger.log = lambda level, text, *values: said.append((level, text % values))
    ModelRunner(torch.nn.Sequential(*served, *left[:2])).load_model()
    ModelRunner(torch.nn.Sequential(*left)).load_model()
    (serving, some), _, (nothing, none), _ = said
    assert serving < nothing and "serves 4 of the 6 mixture-of-experts layers of Sequential; 1 leave their sum" in some
    assert "; 1 have quantised weights" in some and f"serves 0 of the {len(left)} mixture-of-experts" in none


@pytest.mark.parametrize("size", [2, 3])
def test_layers(size):
    ranks = Ranks(size)
    try:
        ranks.run(experts_case)
    finally:
        ranks.stop()


def test_plugin_serves_experts_if_it_is_asked_for():
    program = """
import serving_stubs; serving_stubs.install_sglang(sequence_parallel=False)
from shingle.torch.sglang import register
register()
from sglang.srt.plugins.hook_registry import HookRegistry
HookRegistry.apply_hooks()
from sglang.srt.distributed.bootstrap import initialize_layernorm_sp
initialize_layernorm_sp(model_config=None)
print([name for name in HookRegistry._hooks if "FusedMoE" in name])
"""
    hook = "sglang.srt.layers.moe.fused_moe_triton.layer.FusedMoE.forward_impl"
    assert run(program, vllm=False, SHINGLE_SGLANG="1")[0] == "[]\n"
    assert run(program, vllm=False, SHINGLE_SGLANG="1", SHINGLE_EXPERTS="1")[0] == f"['{hook}']\n"
