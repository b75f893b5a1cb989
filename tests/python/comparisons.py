"""Random tensors, shards and comparisons of tests of the ops on CPU. The reference is unsharded, in float64."""

import pytest
import torch
import torch.distributed as dist

K, N, INNER = 8, 6, 10
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def sizes():
    return dist.get_rank(), dist.get_world_size()


def random(*shape, dtype=torch.float64, grad=True):
    return torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad)


def own(whole):
    """This rank's rows of a matrix."""
    rank, ranks = sizes()
    shard = -(-whole.shape[0] // ranks)
    return whole[rank * shard : (rank + 1) * shard]


def leaf(tensor):
    return tensor.detach().clone().requires_grad_()


def close(got, expected, dtype, what, scale=None):
    """Compares in the Frobenius norm. scale: what errors are relative to; None: the norm of what is expected."""
    assert got is not None, f"{what} is missing"
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    assert got.dtype == dtype, (what, got.dtype)
    error = (got.double() - expected.double()).norm() / (scale or max(expected.double().norm(), 1e-30))
    assert expected.numel() == 0 or error <= TOLERANCE[dtype], f"{what} is off by {error}"


def gradients_match(inputs, dtype):
    """Compares gradients of leaves with those of the reference. inputs: {name: (leaf, reference leaf)}."""
    for name, (got, expected) in inputs.items():
        close(got.grad, expected.grad, dtype, f"gradient of {name}")


def each_subset_matches(gradients, count):
    """gradients(wants): those that are wanted, and None for others. Each has the same bits whatever else is wanted."""
    expected = gradients([True] * count)
    for number in range(1, 1 << count):
        wants = [bool(number >> bit & 1) for bit in range(count)]
        for got, want, of_all in zip(gradients(wants), wants, expected):
            assert torch.equal(got, of_all) if want else got is None, wants


RANKS = pytest.mark.parametrize("ranks", [2, 3])
ROWS = pytest.mark.parametrize("m", [12, 7, 1])  # divided by the ranks, uneven, fewer than ranks
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
