"""Layers of Megatron-core on CPU, against whole matrices in float64."""

import dataclasses
import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402

ROWS, BATCH, K, N = 8, 2, 8, 12


def make(layer, size_in, size_out, whole, **fields):
    """A layer that holds this rank's part of a whole weight [out, in]."""
    from megatron.core import parallel_state
    from megatron.core.transformer import TransformerConfig

    if not parallel_state.model_parallel_is_initialized():
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    options = {name: fields.pop(name) for name in ("sequence_parallel",) if name in fields}
    config = TransformerConfig(
        num_layers=1, hidden_size=K, num_attention_heads=2, use_cpu_initialization=True, params_dtype=torch.float64,
        tensor_model_parallel_size=dist.get_world_size(), gradient_accumulation_fusion=False, **options,
    )  # fmt: skip
    made = layer(size_in, size_out, config=config, init_method=torch.nn.init.zeros_, **fields)
    with torch.no_grad():
        dim = 0 if "Column" in layer.__name__ else 1
        made.weight.copy_(whole.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()])
    return made


def mine(whole, dim):
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def column_case(sequence_parallel, bias):
    from shingle.torch import megatron

    torch.manual_seed(3)  # the same on all ranks
    x, w = torch.randn(ROWS, BATCH, K).double().requires_grad_(), torch.randn(N, K).double().requires_grad_()
    b, grad = torch.randn(N).double(), torch.randn(ROWS, BATCH, N).double()
    layer = make(megatron.ColumnParallelLinear, K, N, w, bias=bias, sequence_parallel=sequence_parallel)
    expected = x @ w.t()
    if bias:
        with torch.no_grad():
            layer.bias.copy_(mine(b, 0))
        expected = expected + b
    (expected * grad).sum().backward()
    own = (mine(x, 0) if sequence_parallel else x).detach().requires_grad_()
    out, left = layer(own)
    assert left is None
    close(out, mine(expected, 2))
    (out * mine(grad, 2)).sum().backward()
    close(own.grad, mine(x.grad, 0) if sequence_parallel else x.grad)
    close(layer.weight.grad, mine(w.grad, 0))


def row_case(sequence_parallel, skip_bias_add):
    from shingle.torch import megatron

    torch.manual_seed(4)
    x, w = torch.randn(ROWS, BATCH, K).double().requires_grad_(), torch.randn(N, K).double().requires_grad_()
    b, grad = torch.randn(N).double(), torch.randn(ROWS, BATCH, N).double()
    layer = make(
        megatron.RowParallelLinear, K, N, w, bias=True, input_is_parallel=True, skip_bias_add=skip_bias_add,
        sequence_parallel=sequence_parallel,
    )  # fmt: skip
    with torch.no_grad():
        layer.bias.copy_(b)
    expected = x @ w.t() + (0 if skip_bias_add else b)
    (expected * grad).sum().backward()
    own = mine(x, 2).detach().requires_grad_()
    out, left = layer(own)
    assert (left is layer.bias) == skip_bias_add
    close(out, mine(expected, 0) if sequence_parallel else expected)
    (out * (mine(grad, 0) if sequence_parallel else grad)).sum().backward()
    close(own.grad, mine(x.grad, 2))
    close(layer.weight.grad, mine(w.grad, 1))
    if not skip_bias_add:  # Megatron sums the gradients of a bias over the parts of a sequence
        close(layer.bias.grad, (mine(grad, 0) if sequence_parallel else grad).sum((0, 1)))


def main_grad_case():
    from shingle.torch import megatron

    torch.manual_seed(5)
    x, w = torch.randn(ROWS, BATCH, K).double(), torch.randn(N, K).double()
    layer = make(megatron.RowParallelLinear, K, N, w, bias=False, input_is_parallel=True, skip_bias_add=False)
    layer.weight.main_grad, layer.weight.grad_added_to_main_grad = torch.ones_like(layer.weight), False
    out, _ = layer(mine(x, 2))
    out.sum().backward()
    assert layer.weight.grad_added_to_main_grad
    close(layer.weight.main_grad, 1 + mine(torch.ones(ROWS * BATCH, N).double().t() @ x.flatten(0, 1), 1))


def spec_case():
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_mlp_module_spec_for_backend
    from shingle import errors
    from shingle.torch import megatron

    spec = megatron.overlapped(get_gpt_layer_local_spec())
    attention, mlp = spec.submodules.self_attention.submodules, spec.submodules.mlp.submodules
    assert attention.linear_qkv is mlp.linear_fc1 is megatron.ColumnParallelLinear
    assert attention.linear_proj is mlp.linear_fc2 is megatron.RowParallelLinear
    own = get_mlp_module_spec_for_backend(backend=megatron.SpecProvider())
    assert own.submodules.linear_fc1 is megatron.ColumnParallelLinear
    assert megatron.overlapped(spec) == spec
    with pytest.raises(errors.InvalidArgument, match="no local column- or row-parallel"):
        megatron.overlapped(dataclasses.replace(spec, submodules=None))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_column(sequence_parallel, bias):
    on_ranks(2, column_case, sequence_parallel, bias)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("skip_bias_add", [False, True])
def test_row(sequence_parallel, skip_bias_add):
    on_ranks(2, row_case, sequence_parallel, skip_bias_add)


def test_main_grad():
    on_ranks(2, main_grad_case)


def test_specs_and_their_layers():
    on_ranks(2, spec_case)
