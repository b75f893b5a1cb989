"""Modules of experts, and models of Transformers whose experts expert_parallel replaces, against those of one rank."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
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
        self.shared = nn.ModuleList(nn.Linear(*sizes, bias=False) for sizes in ((HIDDEN, INNER),) * 2 + ((INNER, HIDDEN),))

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


def module_case(normalize, shared_parallel):
    """Forward and gradients; the shared expert is sharded over the ranks, or a replica."""
    from shingle.torch.nn import Experts, MoE, SwiGluMLP

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, x = WholeMoE(normalize), torch.randn(TOKENS * ranks, HIDDEN)
    expected = whole(x)
    expected.square().sum().backward()
    shared = SwiGluMLP.from_linears(*whole.shared) if shared_parallel else None
    made = MoE(HIDDEN, INNER, EXPERTS, TOPK, normalize=normalize, shared=shared)
    made.router.load_state_dict(whole.router.state_dict())
    made.experts = Experts.from_weights(whole.up, whole.down)
    own = x.chunk(ranks)[rank].clone().requires_grad_()
    out = made(own)
    if not shared_parallel:
        gate, up, down = whole.shared
        out = out + down(nn.functional.silu(gate(own)) * up(own)).detach()
    check(out, expected.chunk(ranks)[rank], "result")
    out.backward(2 * expected.detach().chunk(ranks)[rank])
    check(made.experts.up.grad, whole.up.grad.chunk(ranks)[rank], "up")
    check(made.experts.down.grad, whole.down.grad.chunk(ranks)[rank], "down")
    check(summed(made.router.weight.grad), whole.router.weight.grad, "router")
    logits = whole.router(own).detach()
    check(made(own, logits), made(own), "with logits")
    made.shared = None
    check(made(own.view(2, -1, HIDDEN)).flatten(0, 1), made(own), "of three dimensions")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_moe_modules(ranks):
    on_ranks(ranks, module_case, True, True)
    on_ranks(ranks, module_case, False, False)


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
    with pytest.raises(errors.InvalidArgument, match="activation = 'tanh'"):
        MoE(HIDDEN, INNER, EXPERTS, TOPK, activation="tanh")(torch.randn(3, HIDDEN))
    with pytest.raises(errors.InvalidArgument, match="w_down.shape"):
        Experts.from_weights(torch.randn(4, 2 * INNER, HIDDEN), torch.randn(4, HIDDEN, INNER + 1))
    with pytest.raises(errors.InvalidArgument, match="topk = 5"):
        MoE(HIDDEN, INNER, EXPERTS, 5)


def test_bad_sizes_name_the_argument():
    on_ranks(2, bad_module_case)
