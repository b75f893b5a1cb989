"""Modules, parallelize_module styles and Transformers against the unsharded modules of PyTorch, with gradients."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import parallelize_module  # noqa: E402

HIDDEN, INNER = 8, 12


class Reference(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def shard(tensor, dim=0):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def check(got, expected, what=""):
    torch.testing.assert_close(got, expected, msg=lambda text: f"{what}: {text}")


def reference_run(module, x):
    module.zero_grad()
    x = x.detach().requires_grad_()
    out = module(x)
    out.square().sum().backward()
    return out.detach(), x.grad


def linear_pair_case(sequence_parallel, sequence_dim, main_grad, deferred):
    from shingle.torch.nn import ColumnParallelLinear, RowParallelLinear

    ranks, reference = dist.get_world_size(), Reference()
    whole = torch.randn(2 * ranks, 3 * ranks, HIDDEN)
    expected, expected_dx = reference_run(reference, whole)
    options = {"sequence_parallel": sequence_parallel, "sequence_dim": sequence_dim, "defer_weight_gradient": deferred}
    up = ColumnParallelLinear.from_linear(reference.up, **options)
    down = RowParallelLinear.from_linear(reference.down, **options)
    for layer in (up, down):
        if main_grad:
            layer.weight.main_grad = torch.ones(layer.weight.shape)
            layer.weight.grad_added_to_main_grad = False

    def own(t):
        return shard(t, sequence_dim) if sequence_parallel else t

    x = own(whole).clone().requires_grad_()
    out = down(torch.relu(up(x)))
    check(out, own(expected), "result")
    out.square().sum().backward()
    check(x.grad, own(expected_dx), "gradient of x")
    for layer, wanted in ((up, shard(reference.up.weight.grad)), (down, shard(reference.down.weight.grad, 1))):
        if deferred:
            assert layer.weight.grad is None
            layer.backward_dw()
        if main_grad:
            assert deferred or layer.weight.grad_added_to_main_grad
            check(layer.weight.main_grad, wanted + 1, "main_grad")
        else:
            check(layer.weight.grad, wanted, "gradient of a weight")
    check(up.bias.grad, shard(reference.up.bias.grad), "bias of up")
    check(down.bias.grad, reference.down.bias.grad, "bias of down")


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("sequence_parallel, sequence_dim", [(False, 0), (True, 0), (True, 1)])
def test_linear_pair(ranks, sequence_parallel, sequence_dim):
    on_ranks(ranks, linear_pair_case, sequence_parallel, sequence_dim, False, False)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("main_grad, deferred", [(True, False), (False, True), (True, True)])
def test_main_grad_and_deferred_weight_gradients(sequence_parallel, main_grad, deferred):
    on_ranks(2, linear_pair_case, sequence_parallel, 0, main_grad, deferred)


def main_grad_is_not_rounded_case():
    from shingle.torch.weight_gradients import accumulate

    grad, x = torch.randn(64, 4, dtype=torch.bfloat16), torch.randn(64, 3, dtype=torch.bfloat16)
    total = torch.zeros(4, 3)
    accumulate(total, grad, x)
    check(total, grad.float().t() @ x.float())
    assert not torch.equal(total, (grad.t() @ x).float())


def test_main_grad_is_not_rounded():
    main_grad_is_not_rounded_case()


def mlp_case(sequence_parallel):
    from shingle.torch.nn import SwiGluMLP

    gate, up, down = (nn.Linear(*sizes, bias=False) for sizes in ((HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN)))

    class Mlp(nn.Module):
        def forward(self, x):
            return down(nn.functional.silu(gate(x)) * up(x))

    whole = torch.randn(2 * dist.get_world_size(), 3, HIDDEN)
    expected, expected_dx = reference_run(Mlp(), whole)
    made = SwiGluMLP.from_linears(gate, up, down, sequence_parallel=sequence_parallel)
    own = shard if sequence_parallel else lambda t: t
    x = own(whole).clone().requires_grad_()
    out = made(x)
    check(out, own(expected), "result")
    out.square().sum().backward()
    check(x.grad, own(expected_dx), "gradient of x")
    check(made.gate_up.grad, torch.cat([shard(gate.weight.grad), shard(up.weight.grad)]), "gate and up")
    check(made.down.grad, shard(down.weight.grad, 1), "down")


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_swiglu_mlp(sequence_parallel):
    on_ranks(2, mlp_case, sequence_parallel)


def dtensor_module_case():
    from shingle.torch.nn import ColumnParallelLinear, RowParallelLinear

    mesh, reference = init_device_mesh("cpu", (dist.get_world_size(),)), Reference()
    whole = torch.randn(4 * dist.get_world_size(), HIDDEN)
    up = ColumnParallelLinear.from_linear(reference.up, mesh, sequence_parallel=True)
    down = RowParallelLinear.from_linear(reference.down, mesh, sequence_parallel=True)
    hidden = up(DTensor.from_local(shard(whole), mesh, (Shard(0),)))
    assert hidden.placements == (Shard(-1),) or hidden.placements == (Shard(1),)
    out = down(torch.relu(hidden))
    assert out.placements == (Shard(0),)
    check(out.full_tensor(), reference(whole))


def test_modules_take_and_give_dtensors():
    on_ranks(2, dtensor_module_case)


def uneven_case():
    """Layouts and rows that the ranks do not divide."""
    from shingle.torch.dtensor import ColwiseParallel
    from shingle.torch.nn import ColumnParallelLinear, RowParallelLinear

    mesh, reference = init_device_mesh("cpu", (dist.get_world_size(),)), Reference()
    whole = torch.randn(5, HIDDEN)
    made = parallelize_module(
        copy.deepcopy(reference.up), mesh, ColwiseParallel(input_layouts=Shard(0), use_local_output=False)
    )
    check(made(distribute_tensor(whole, mesh, [Shard(0)])).full_tensor(), reference.up(whole))
    up = ColumnParallelLinear.from_linear(reference.up, mesh, sequence_parallel=True)
    check(up(distribute_tensor(whole[:4], mesh, [Replicate()])).full_tensor(), reference.up(whole[:4]))
    down = RowParallelLinear.from_linear(reference.down, mesh, sequence_parallel=True)
    with pytest.raises(errors.InvalidArgument, match="must be a multiple of the 2 ranks"):
        down(torch.randn(5, reference.down.in_features // 2))


def test_uneven_rows_and_other_layouts():
    on_ranks(2, uneven_case)


def autocast_case(sequence_parallel):
    from shingle.torch.nn import ColumnParallelLinear, RowParallelLinear

    reference, whole = Reference(), torch.randn(4, 2, HIDDEN)
    up = ColumnParallelLinear.from_linear(reference.up, sequence_parallel=sequence_parallel)
    down = RowParallelLinear.from_linear(reference.down, sequence_parallel=sequence_parallel)
    for layer in (up, down):
        layer.weight.main_grad = torch.zeros(layer.weight.shape)
    x = (shard(whole) if sequence_parallel else whole).clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = down(torch.relu(up(x)))
    assert out.dtype == torch.bfloat16
    out.float().square().sum().backward()
    expected, expected_dx = reference_run(reference, whole)
    assert x.grad.dtype == torch.float32
    for got, wanted in (
        (out, shard(expected) if sequence_parallel else expected),
        (x.grad, shard(expected_dx) if sequence_parallel else expected_dx),
        (up.weight.main_grad, shard(reference.up.weight.grad)),
    ):
        assert (got.float() - wanted).norm() <= 0.05 * wanted.norm()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_main_grad_under_autocast(sequence_parallel):
    on_ranks(2, autocast_case, sequence_parallel)


def bad_module_case():
    from shingle.torch.nn import ColumnParallelLinear, RowParallelLinear, SwiGluMLP

    with pytest.raises(errors.InvalidArgument, match="out_features = 7"):
        ColumnParallelLinear(HIDDEN, 7)
    with pytest.raises(errors.InvalidArgument, match="in_features = 7"):
        RowParallelLinear(7, HIDDEN)
    with pytest.raises(errors.InvalidArgument, match="inner = 7"):
        SwiGluMLP(HIDDEN, 7)
    with pytest.raises(errors.InvalidArgument, match="sequence_dim = 1"):
        SwiGluMLP(HIDDEN, 8, sequence_dim=1)


def test_bad_sizes_name_the_argument():
    on_ranks(2, bad_module_case)


def styles_case(layouts, compiled):
    from shingle.torch.dtensor import ColwiseParallel, RowwiseParallel

    mesh, reference = init_device_mesh("cpu", (dist.get_world_size(),)), Reference()
    made = copy.deepcopy(reference)
    layout = {"replicate": Replicate(), "rows": Shard(0), "sequence": Shard(1)}[layouts]
    parallelize_module(
        made, mesh, {"up": ColwiseParallel(input_layouts=layout), "down": RowwiseParallel(output_layouts=layout)}
    )
    assert made.up.weight.placements == (Shard(0),) and made.down.weight.placements == (Shard(1),)
    whole = torch.randn(4, 6, HIDDEN)
    expected, expected_dx = reference_run(reference, whole)

    def own(t):
        return t if layouts == "replicate" else shard(t, layout.dim)

    x = own(whole).clone().requires_grad_()
    run = torch.compile(made, backend="aot_eager", fullgraph=True) if compiled else made
    out = run(x)
    assert not isinstance(out, DTensor)
    check(out, own(expected), "result")
    out.square().sum().backward()
    check(x.grad, own(expected_dx), "gradient of x")
    for name, parameter in reference.named_parameters():
        check(made.get_parameter(name).grad.full_tensor(), parameter.grad, name)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("layouts", ["replicate", "rows", "sequence"])
def test_styles_of_parallelize_module(layouts, compiled):
    on_ranks(2, styles_case, layouts, compiled)


def unserved_case():
    from shingle.torch.dtensor import ColwiseParallel

    mesh, embedding = init_device_mesh("cpu", (dist.get_world_size(),)), nn.Embedding(6, 4)
    tokens, expected = torch.arange(6), None
    expected = embedding(tokens)
    parallelize_module(embedding, mesh, ColwiseParallel(output_layouts=Replicate()))
    check(embedding(tokens), expected)


def test_what_no_op_serves_runs_as_in_pytorch():
    on_ranks(2, unserved_case)


def llama(seed=3):
    """A tiny Llama with random weights, the same on all ranks."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )  # fmt: skip
    )


def llama_case(path):
    from shingle import torch as st
    from shingle.torch import transformers as styles
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    model, tokens = llama(), torch.arange(10).view(2, 5)
    expected = model(tokens, labels=tokens)
    expected.loss.backward()
    styles.register()
    before = st.counters()
    made = AutoModelForCausalLM.from_pretrained(path, distributed_config=DistributedConfig(tp_plan="auto", tp_size=2))
    with torch.no_grad():
        check(made(tokens).logits, expected.logits, "logits without gradients")
    got = made(tokens, labels=tokens)
    check(got.logits, expected.logits, "logits")
    got.loss.backward()
    gradients = dict(model.named_parameters())
    for name, parameter in made.named_parameters():
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        check(grad, gradients[name].grad, name)
    counts = {name: count - before.get(name, 0) for name, count in st.counters().items()}
    assert counts["transformers.rowwise"] == 4 and counts["transformers.colwise"] == 10, counts


def test_llama_with_tp_plan(tmp_path):
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    llama().save_pretrained(tmp_path)
    on_ranks(2, llama_case, tmp_path)
