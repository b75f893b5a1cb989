"""vLLM's mixture-of-experts layers by fused_moe on CPU, compiled and not, with a stand-in for vLLM."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from test_torch_vllm import compile_range, compiled, prepare, ranks, run  # noqa: E402, F401

HIDDEN, INNER, EXPERTS, TOPK, TOKENS = 16, 12, 6, 2, 9


class Gate(torch.nn.Module):
    """Logits and a bias, as GateLinear returns."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(EXPERTS, HIDDEN), requires_grad=False)

    def forward(self, x):
        return x.float() @ self.weight.t(), None


def serve():
    """The plugin's class in place of vLLM's, the pass manager, and a group, which lives as long as it is kept."""
    vllm_pass, manager, kept = prepare()
    from shingle import torch as st
    from shingle.torch import vllm_experts
    from vllm.distributed import parallel_state
    from vllm.model_executor import custom_op

    if "MoERunner" not in custom_op.op_registry_oot:
        vllm_experts.register()
    parallel_state._TP = kept
    st.configure(min_m=TOKENS, max_m=TOKENS + 2)
    compile_range(TOKENS, TOKENS + 2)
    torch._inductor.config.enable_auto_functionalized_v2 = False  # as vLLM configures Inductor
    return vllm_pass, manager, kept


def layer_of(dtype=torch.bfloat16, **options):
    from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
    from vllm.model_executor.layers.fused_moe.runner import moe_runner

    options = {"gate": Gate(), "prefix": f"layers.{len(moe_runner.layers)}.experts"} | options
    layer = FusedMoEFactory(EXPERTS, TOPK, HIDDEN, INNER * dist.get_world_size(), params_dtype=dtype, **options)
    torch.manual_seed(dist.get_rank())
    for weight in (layer.routed_experts.w13_weight, layer.routed_experts.w2_weight):
        torch.nn.init.normal_(weight)
    torch.manual_seed(7)
    return layer


def compare(layer, x, run, serves, vllm_pass):
    """Compares a layer with vLLM's own. serves: calls that Shingle computes."""
    own, before = super(type(layer), layer).forward, vllm_pass.matches["experts"]
    logits = torch.randn(x.shape[0], EXPERTS)
    with torch.inference_mode():
        expected, given = own(x.clone(), logits), x.clone()
        got = run(given, logits)
    tolerance = 4 * torch.finfo(x.dtype).eps  # of the largest sum: a rank rounds products, then sums over the ranks
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * expected.abs().max().item())
    assert torch.equal(given, x) and vllm_pass.matches["experts"] - before == serves


def eager_case(dtype):
    vllm_pass, _, kept = serve()
    from vllm import envs

    layer = layer_of(dtype)
    assert layer.unserved is None
    for tokens, serves in ((TOKENS, 1), (TOKENS + 1, 1), (TOKENS + 2, 1), (TOKENS - 1, 0), (TOKENS + 3, 0)):
        compare(layer, torch.randn(tokens, HIDDEN, dtype=dtype), layer, serves, vllm_pass)
    x = torch.randn(TOKENS, HIDDEN, dtype=dtype)
    without_gate = layer_of(dtype, gate=None)
    compare(without_gate, x, without_gate, 1, vllm_pass)
    envs.VLLM_BATCH_INVARIANT = True
    compare(layer, x, layer, 0, vllm_pass)
    envs.VLLM_BATCH_INVARIANT = False


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_without_compilation(ranks, dtype):  # noqa: F811
    ranks(eager_case, dtype)


def all_to_one_case():
    """All tokens choose the same experts: no choice is dropped."""
    vllm_pass, _, _ = serve()
    layer = layer_of(torch.float32)
    layer.gate.weight.zero_()
    compare(layer, torch.randn(TOKENS + 2, HIDDEN), layer, 1, vllm_pass)


def test_the_capacity_is_enough_for_any_routing(ranks):  # noqa: F811
    ranks(all_to_one_case)


def compiled_case(backend):
    vllm_pass, manager, _ = serve()
    layer = layer_of(torch.float32)
    x = torch.randn(TOKENS, HIDDEN)

    def function(x, logits):
        return layer(x.clone(), logits)

    def check(matches, serves, function=function, dynamic=True):
        torch._dynamo.reset()
        before = vllm_pass.matches["moe_all_reduce"]
        compare(layer, x, compiled(function, manager, backend, dynamic), serves, vllm_pass)
        assert vllm_pass.matches["moe_all_reduce"] - before == matches

    check(1, 1)
    if backend is None:
        check(1, 1, dynamic=False)
        check(0, 0, layer)  # the graph returns what vLLM's op may overwrite
        compile_range(1, TOKENS)
        check(0, 0)


@pytest.mark.parametrize("backend", [None, "inductor"])
def test_compiled_layers(ranks, backend):  # noqa: F811
    ranks(compiled_case, backend)


def mixed_case():
    """A graph with a layer that is served, and one that is not."""
    vllm_pass, manager, _ = serve()
    layer, other = layer_of(torch.float32), layer_of(torch.float32, quant_config=Quantised())

    def function(x, logits):
        return layer(x.sin(), logits) + other(x.cos(), logits)

    x, logits, before = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, EXPERTS), vllm_pass.matches.copy()
    with torch.inference_mode():
        torch.testing.assert_close(compiled(function, manager, None, True)(x, logits), function(x, logits))
    assert (vllm_pass.matches - before)["moe_all_reduce"] == 2


def test_layers_of_a_graph_that_are_not_served_run_as_in_vllm(ranks):  # noqa: F811
    ranks(mixed_case)


class Quantised:
    topk_indices_dtype = None

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts, shared_experts_input):
        from serving_stubs.experts import weighted_sums

        return weighted_sums(x, layer.w13_weight, layer.w2_weight, topk_weights, topk_ids)


def unserved_case():
    vllm_pass, _, _ = serve()
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.router.routing_simulator_router import RoutingSimulatorRouter
    from vllm.model_executor.layers.fused_moe.router.zero_expert_router import ZeroExpertRouter
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

    other = UnquantizedFusedMoEMethod()
    other.unquantized_backend = UnquantizedMoeBackend.FLASHINFER_CUTLASS
    x = torch.randn(TOKENS, HIDDEN)
    for reason, options in (
        ("quantised", {"quant_config": Quantised()}),
        ("Triton", {"quant_config": other}),
        ("LoRA", {"is_lora_enabled": True}),
        ("slices", {"tp_size": 1}),
        ("slices", {"ep_size": 2}),
        ("slices", {"dp_size": 2}),
        ("slices", {"is_sequence_parallel": True}),
        ("shared experts", {"runner_args": {"shared_experts": torch.nn.Identity()}}),
        ("to the model", {"reduce_results": False}),
        ("SwiGLU", {"activation": "gelu"}),
        ("SwiGLU", {"has_bias": True}),
        ("SwiGLU", {"routed_experts_args": {"swiglu_limit": 7.0}}),
        ("weighs inputs", {"routed_experts_args": {"apply_router_weight_on_input": True}}),
        ("scales", {"runner_args": {"routed_scaling_factor": 2.5}}),
        ("pads", {"hidden_dim_unpadded": HIDDEN - 1}),
        ("twice", {"has_hash_routing": True}),
        ("twice", {"router": RoutingSimulatorRouter(TOPK)}),
        ("none", {"router": ZeroExpertRouter(TOPK)}),
        ("dual batch", {"runner_args": {"enable_dbo": True}}),
    ):
        layer = layer_of(torch.float32, **options)
        assert reason in layer.unserved, (reason, layer.unserved)
        compare(layer, x, layer, 0, vllm_pass)


def test_other_layers_are_left_alone(ranks):  # noqa: F811
    ranks(unserved_case)


LAYER = """
import torch, types
from shingle.torch.vllm import register
register()
from vllm.distributed import parallel_state
parallel_state._TP = types.SimpleNamespace(world_size=2)
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
for at, options in enumerate(({"is_lora_enabled": True}, {"is_lora_enabled": True}, {})):
    print(type(FusedMoEFactory(4, 2, 8, 8, prefix=str(at), **options)).__module__)
"""


def test_plugin_serves_experts_if_it_is_asked_for():
    name = "vllm.model_executor.layers.fused_moe.runner.moe_runner\n"
    assert run(LAYER, SHINGLE_VLLM="1") == (3 * name, "")
    assert run(LAYER, SHINGLE_EXPERTS="1") == (3 * name, "")
    found, said = run(LAYER, SHINGLE_VLLM="1", SHINGLE_EXPERTS="1")
    assert found == 3 * "shingle.torch.vllm_experts\n"
    assert said.count("leaves mixture-of-experts layers to vLLM: LoRA is on") == 1


def test_plugin_of_a_vllm_that_it_does_not_know_says_so():
    name = "vllm.model_executor.layers.fused_moe.runner.moe_runner"
    old = f"import sys; del sys.modules['{name}'], sys.modules['{name[:-11]}'].moe_runner\n"
    assert "needs vLLM 0.33" in run(old + LAYER.split("from vllm")[0], SHINGLE_VLLM="1", SHINGLE_EXPERTS="1")[1]
    other = f"import torch; from {name[:-11]} import moe_runner; moe_runner.MoERunner = torch.nn.Module\n"
    assert "cannot be replaced" in run(other + LAYER.split("from vllm")[0], SHINGLE_VLLM="1", SHINGLE_EXPERTS="1")[1]
    taken = "from vllm.model_executor import custom_op; custom_op.op_registry_oot['MoERunner'] = object\n"
    assert "another plugin" in run(taken + LAYER.split("from vllm")[0], SHINGLE_VLLM="1", SHINGLE_EXPERTS="1")[1]
