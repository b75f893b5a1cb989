"""Modules of experts, and models of Transformers whose experts expert_parallel replaces, against those of one rank."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from test_torch_experts import SPLITS, slice_of  # noqa: E402
from torch import nn  # noqa: E402

HIDDEN, INNER, EXPERTS, TOPK, TOKENS = 8, 12, 4, 2, 6


def check(got, expected, what, tolerance=1e-4):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


class WholeMoE(nn.Module):
    """A mixture of SwiGLU experts on one rank."""

    def __init__(self, normalize):
        super().__init__()
        self.normalize = normalize
        self.router = nn.Linear(HIDDEN, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, HIDDEN))
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, INNER))
        sizes = (HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN)
        self.shared = nn.ModuleList(nn.Linear(*size, bias=False) for size in sizes)

    def forward(self, x):
        probabilities = self.router(x).softmax(-1)
        weights, ids = probabilities.topk(TOPK)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        gate, up = torch.einsum("...k,...jnk->...jn", x, self.up[ids]).chunk(2, -1)
        each = torch.einsum("...ji,...jni->...jn", nn.functional.silu(gate) * up, self.down[ids])
        gate, up, down = self.shared
        return torch.einsum("...j,...jn->...n", weights, each) + down(nn.functional.silu(gate(x)) * up(x))


def summed(grad):
    grad = grad.clone()
    dist.all_reduce(grad)
    return grad


def own_part(w, is_up, tensor_parallel):
    """This rank's part of weights of all experts, [experts, out, in]."""
    if not tensor_parallel:
        return w.chunk(dist.get_world_size())[dist.get_rank()]
    return slice_of(w, 1, 2) if is_up else slice_of(w, 2)


def module_case(tensor_parallel, normalize, shared_parallel):
    """Forward and gradients; the shared expert is sharded over the ranks, or a replica."""
    from shingle.torch.nn import Experts, MoE, SwiGluMLP

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, x = WholeMoE(normalize), torch.randn(TOKENS * ranks, HIDDEN)
    expected = whole(x)
    expected.square().sum().backward()
    shared = SwiGluMLP.from_linears(*whole.shared) if shared_parallel else None
    made = MoE(HIDDEN, INNER, EXPERTS, TOPK, normalize=normalize, shared=shared, tensor_parallel=tensor_parallel)
    sizes = [parameter.shape for parameter in made.experts.parameters()]
    made.router.load_state_dict(whole.router.state_dict())
    made.experts = Experts.from_weights(whole.up, whole.down, tensor_parallel=tensor_parallel)
    assert sizes == [parameter.shape for parameter in made.experts.parameters()]
    own = x.chunk(ranks)[rank].clone().requires_grad_()
    out = made(own)
    if not shared_parallel:
        gate, up, down = whole.shared
        out = out + down(nn.functional.silu(gate(own)) * up(own)).detach()
    check(out, expected.chunk(ranks)[rank], "result")
    out.backward(2 * expected.detach().chunk(ranks)[rank])
    check(made.experts.up.grad, own_part(whole.up.grad, True, tensor_parallel), "up")
    check(made.experts.down.grad, own_part(whole.down.grad, False, tensor_parallel), "down")
    check(summed(made.router.weight.grad), whole.router.weight.grad, "router")
    logits = whole.router(own).detach()
    check(made(own, logits), made(own), "with logits")
    made.shared = None
    check(made(own.view(2, -1, HIDDEN)).flatten(0, 1), made(own), "of three dimensions")


@SPLITS
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_moe_modules(ranks, tensor_parallel):
    on_ranks(ranks, module_case, tensor_parallel, True, True)
    on_ranks(ranks, module_case, tensor_parallel, False, False)


def dtensor_case():
    from shingle.torch.nn import Experts
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh, x = init_device_mesh("cpu", (dist.get_world_size(),)), torch.randn(5, HIDDEN)
    experts = Experts(EXPERTS, HIDDEN, INNER, mesh)
    ids, weights = torch.randint(EXPERTS, (5, TOPK)), torch.rand(5, TOPK)
    out = experts(*(DTensor.from_local(of, mesh, (Shard(0),)) for of in (x, ids, weights)))
    assert out.placements == (Shard(0),)
    check(out.to_local(), experts(x, ids, weights), "a DTensor")


def test_experts_take_and_give_dtensors():
    on_ranks(2, dtensor_case)


def bad_module_case():
    from shingle.torch.nn import Experts, MoE

    with pytest.raises(errors.InvalidArgument, match="experts = 5 must be a multiple of the 2 ranks"):
        Experts(5, HIDDEN, INNER)
    with pytest.raises(errors.InvalidArgument, match="inner = 13 must be a multiple of the 2 ranks"):
        Experts(5, HIDDEN, 13, tensor_parallel=True)
    with pytest.raises(errors.InvalidArgument, match="activation = 'tanh'"):
        MoE(HIDDEN, INNER, EXPERTS, TOPK, activation="tanh")(torch.randn(3, HIDDEN))
    with pytest.raises(errors.InvalidArgument, match="w_down.shape"):
        Experts.from_weights(torch.randn(4, 2 * INNER, HIDDEN), torch.randn(4, HIDDEN, INNER + 1))
    with pytest.raises(errors.InvalidArgument, match="topk = 5"):
        MoE(HIDDEN, INNER, EXPERTS, 5)


def test_bad_sizes_name_the_argument():
    on_ranks(2, bad_module_case)


NAMES = "Mixtral", "Qwen2Moe", "Qwen3Moe", "Olmoe", "DeepseekV2", "DeepseekV3"


def tiny(name, experts=4):
    """A tiny model with random weights, the same on all ranks, and the number of its MoE blocks."""
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "eos_token_id": 1,
             "num_experts_per_tok": TOPK}  # fmt: skip
    narrow = {"num_experts": experts, "moe_intermediate_size": 12}
    low_rank = {"n_routed_experts": experts, "moe_intermediate_size": 12, "n_group": 2, "topk_group": 1,
                "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4,
                "n_shared_experts": 1, "first_k_dense_replace": 1}  # fmt: skip
    own = {"Mixtral": {"num_local_experts": experts}, "Qwen2Moe": narrow | {"shared_expert_intermediate_size": 20},
           "Qwen3Moe": narrow | {"head_dim": 4}, "Olmoe": {"num_experts": experts}}.get(name, low_rank)  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**sizes, **own)
    torch.manual_seed(3)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():  # routers, which some models fill with zeros
        nn.init.normal_(parameter, std=0.1)
    return model, 1 if own is low_rank else 2


def is_of_experts(name):
    return ".experts." in name and name.endswith(("gate_up_proj", "down_proj"))


PARALLEL = {False: "expert_parallel", True: "expert_tensor_parallel"}  # the line, by tensor_parallel


def model_case(name, tensor_parallel):
    """Logits and gradients of each rank's own texts, which differ in length."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, blocks = tiny(name)
    made, before = copy.deepcopy(whole), st.counters().get("transformers.experts", 0)
    assert getattr(st, PARALLEL[tensor_parallel])(made) == blocks
    assert st.counters()["transformers.experts"] == before + blocks
    assert dict(made.named_parameters()).keys() == dict(whole.named_parameters()).keys()
    texts = [torch.randint(64, (2, 5 + 2 * rank)) for rank in range(ranks)]
    expected = [whole(text).logits for text in texts]
    sum(logits.square().sum() for logits in expected).backward()
    got = made(texts[rank]).logits
    check(got, expected[rank], "logits")
    got.square().sum().backward()
    for (parameter_name, parameter), wanted in zip(made.named_parameters(), whole.parameters()):
        if wanted.grad is None:
            assert parameter.grad is None, parameter_name
        elif is_of_experts(parameter_name):
            is_up = parameter_name.endswith("gate_up_proj")
            check(parameter.grad, own_part(wanted.grad, is_up, tensor_parallel), parameter_name)
        else:
            check(summed(parameter.grad), wanted.grad, parameter_name)
    with torch.no_grad():
        check(made.generate(texts[rank], max_new_tokens=3, do_sample=False),
              whole.generate(texts[rank], max_new_tokens=3, do_sample=False), "generated")  # fmt: skip


@SPLITS
@pytest.mark.parametrize("name", NAMES)
def test_models_of_transformers(name, tensor_parallel):
    pytest.importorskip("transformers", reason="transformers is not installed")
    on_ranks(2, model_case, name, tensor_parallel)


def model_with_capacity_case(tensor_parallel):
    """Enough capacity changes nothing; one slot drops, which each block counts."""
    whole, blocks = tiny("Mixtral")
    text = torch.arange(10).view(2, 5) + dist.get_rank()
    plain, roomy, full = (copy.deepcopy(whole) for _ in range(3))
    parallel = getattr(st, PARALLEL[tensor_parallel])
    for wrong in ({"capacity": 0}, {"max_tokens": 10}):
        with pytest.raises(errors.InvalidArgument, match=next(iter(wrong))):
            parallel(plain, **wrong)
    parallel(plain)  # nothing was replaced before
    expected = plain(text).logits
    assert parallel(roomy, capacity=20) == parallel(full, capacity=1, max_tokens=10) == blocks
    check(roomy(text).logits, expected, "logits with enough capacity")
    full(text)
    for layers, drops in ((roomy.model.layers, False), (full.model.layers, True)):
        assert [bool(layer.mlp.experts.dropped[0] > 0) for layer in layers] == [drops] * blocks
    wrapped, counted = nn.parallel.DistributedDataParallel(full), full.model.layers[0].mlp.experts.dropped
    counted += dist.get_rank()
    before = counted.tolist()
    wrapped(text).logits.square().mean().backward()  # ranks' counts stay their own
    assert counted[1] == before[1] and counted[0] > before[0]
    assert full.state_dict().keys() == whole.state_dict().keys()


@SPLITS
def test_models_with_a_capacity(tensor_parallel):
    pytest.importorskip("transformers", reason="transformers is not installed")
    on_ranks(2, model_with_capacity_case, tensor_parallel)


def transposed_case(tensor_parallel):
    """Weights [experts, in, out], as some models hold them."""
    whole, _ = tiny("Mixtral")
    made, text = copy.deepcopy(whole), torch.arange(12).view(2, 6)
    for layer in made.model.layers:
        experts = layer.mlp.experts
        experts.is_transposed = True
        for name in ("gate_up_proj", "down_proj"):
            setattr(experts, name, nn.Parameter(getattr(experts, name).detach().transpose(1, 2).contiguous()))
    getattr(st, PARALLEL[tensor_parallel])(made)
    got, expected = made(text).logits, whole(text).logits
    check(got, expected, "logits")
    got.square().sum().backward()
    (dist.get_world_size() * expected.square().sum()).backward()  # each rank has this text
    for (name, parameter), wanted in zip(made.named_parameters(), whole.parameters()):
        if is_of_experts(name):
            mine = own_part(wanted.grad, name.endswith("gate_up_proj"), tensor_parallel)
            check(parameter.grad, mine.transpose(1, 2), name)


@SPLITS
def test_transposed_weights(tensor_parallel):
    pytest.importorskip("transformers", reason="transformers is not installed")
    on_ranks(2, transposed_case, tensor_parallel)


def data_parallel_case():
    """DistributedDataParallel averages what are replicas, and leaves each rank its experts."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, _ = tiny("Mixtral")
    made, texts = copy.deepcopy(whole), torch.randint(64, (ranks, 2, 5))
    st.expert_parallel(made)
    own = [parameter.detach().clone() for parameter in made.parameters()]
    wrapped = nn.parallel.DistributedDataParallel(made)
    assert all(map(torch.equal, own, made.parameters()))
    wrapped(texts[rank]).logits.square().mean().backward()
    sum(whole(text).logits.square().mean() / ranks for text in texts).backward()
    for (name, parameter), wanted in zip(made.named_parameters(), whole.parameters()):
        if is_of_experts(name):
            check(parameter.grad / ranks, wanted.grad.chunk(ranks)[rank], name)
        else:
            check(parameter.grad, wanted.grad, name)


def test_data_parallel_models():
    pytest.importorskip("transformers", reason="transformers is not installed")
    on_ranks(2, data_parallel_case)


def unserved_case():
    model, _ = tiny("Mixtral")
    with pytest.raises(errors.Unsupported, match="replaced nothing: Linear has no module with gate_up_proj"):
        st.expert_parallel(nn.Linear(2, 2))
    of_three, _ = tiny("Olmoe", experts=3)
    before = [parameter.clone() for parameter in of_three.parameters()]
    with pytest.raises(errors.InvalidArgument, match="which do not divide the 3 experts of model.layers.0.mlp"):
        st.expert_parallel(of_three)
    assert all(map(torch.equal, before, of_three.parameters()))
    assert st.expert_tensor_parallel(of_three) == 2, "which need not divide the experts"
    with pytest.raises(errors.Unsupported, match="expert_tensor_parallel replaced nothing: Linear has no module"):
        st.expert_tensor_parallel(nn.Linear(2, 2))
    odd = tiny("Mixtral")[0]
    for layer in odd.model.layers:
        experts = layer.mlp.experts
        experts.gate_up_proj = nn.Parameter(torch.zeros(4, 2 * 25, 16))
        experts.down_proj = nn.Parameter(torch.zeros(4, 16, 25))
    with pytest.raises(errors.InvalidArgument, match="do not divide the 25 columns of the hidden layers of model"):
        st.expert_tensor_parallel(odd)
    experts = [layer.mlp.experts for layer in model.model.layers]
    for reason, name, value in (
        ("has_bias", "has_bias", True), ("has_post_expert_norm", "has_post_expert_norm", True),
        ("no gate", "has_gate", False), ("interleaved", "is_concatenated", False),
        ("GELU, not SiLU", "act_fn", nn.GELU()),
        ("no .* of a floating dtype", "down_proj", nn.Parameter(experts[0].down_proj.to(torch.float8_e4m3fn), False)),
    ):  # fmt: skip
        kept = [getattr(module, name) for module in experts]
        for module in experts:
            setattr(module, name, value)
        with pytest.raises(errors.Unsupported, match=rf"model.layers.0.mlp.experts: .*{reason}"):
            st.expert_parallel(model)
        for module, of in zip(experts, kept):
            setattr(module, name, of)
    experts[0].act_fn = nn.ReLU()
    assert st.expert_parallel(model) == 1, "the other block"
    with pytest.raises(errors.Unsupported, match="its forward is replaced already"):
        st.expert_parallel(model)


def test_what_is_not_replaced_is_said():
    pytest.importorskip("transformers", reason="transformers is not installed")
    on_ranks(2, unserved_case)


def loaded_case(path, parallel):
    """Models that each rank loads in part: the same as with Transformers' own exchange of tokens."""
    from shingle.torch import transformers as styles
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    styles.register()
    text = torch.arange(10).view(2, 5) + (dist.get_rank() if parallel.get("fsdp_size") else 0)
    whole, _ = tiny("Mixtral")
    expected, found = whole(text).logits, []
    for way in ("shingle", "all_to_all"):
        config = DistributedConfig(ep_size=2, ep_implementation=way, **parallel)
        model = AutoModelForCausalLM.from_pretrained(path, distributed_config=config)
        logits = model(text).logits
        check(logits, expected, f"logits by {way}")
        logits.square().sum().backward()
        found.append({name: parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
                      for name, parameter in model.named_parameters()})  # fmt: skip
    for name, grad in found[0].items():
        check(grad, found[1][name], name)
    assert st.counters()["transformers.experts"] >= 2


ATTENTION = {"model.layers.*.self_attn.o_proj": "rowwise"} | {
    f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"
}


@pytest.mark.parametrize("parallel", [{"fsdp_size": 2}, {"tp_size": 2, "tp_plan": ATTENTION}])
def test_models_that_are_loaded_in_part(tmp_path, parallel):
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    tiny("Mixtral")[0].save_pretrained(tmp_path)
    on_ranks(2, loaded_case, tmp_path, parallel)
