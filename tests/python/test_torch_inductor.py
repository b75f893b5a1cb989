"""The Inductor pass in real compilations on CPU: results, and what was matched."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as collectives  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from ranks import on_ranks  # noqa: E402

K, N = 8, 6


def reduce(x, w):
    return collectives.all_reduce(F.linear(x, w), "sum", dist.group.WORLD)


def scatter(x, w):
    return collectives.reduce_scatter_tensor(F.linear(x, w), "sum", 0, dist.group.WORLD)


def gather(x, w):
    return F.linear(collectives.all_gather_tensor(x, 0, dist.group.WORLD), w).relu()


def gather_for_two(x, w):
    twice, rows = w * 2, collectives.all_gather_tensor(x, 0, dist.group.WORLD)
    return F.linear(rows, w), F.linear(rows, twice)


def weight_of_a_product(x, w):
    rows = collectives.all_gather_tensor(x, 0, dist.group.WORLD)
    first = F.linear(rows, w)
    return first, F.linear(rows, w * first.sum())


def layer(x, w):
    hidden = F.linear(collectives.all_gather_tensor(x, 0, dist.group.WORLD), w)
    return collectives.reduce_scatter_tensor(F.linear(hidden.relu(), w.t()), "sum", 0, dist.group.WORLD)


def norm(x, w, residual, scale):
    total = residual + reduce(x, w)
    return F.rms_norm(total, (N,), scale, 1e-5), total


def llama_norm(x, w, residual, scale):
    total = reduce(x, w) + residual
    wide = total.float()
    return scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(total.dtype), total


def maximum(x, w):
    return collectives.all_reduce(F.linear(x, w), "max", dist.group.WORLD)


def used_twice(x, w):
    product = F.linear(x, w)
    return collectives.all_reduce(product, "sum", dist.group.WORLD), product + 1


def gathered_elsewhere(x, w):
    rows = collectives.all_gather_tensor(x, 0, dist.group.WORLD)
    return F.linear(rows, w), rows + 1


CASES = {
    "reduce": (reduce, {"mm_all_reduce": 1}),
    "scatter": (scatter, {"mm_reduce_scatter": 1}),
    "gather": (gather, {"all_gather_mm": 1}),
    "layer": (layer, {"all_gather_mm": 1, "mm_reduce_scatter": 1}),
    "norm": (norm, {"mm_all_reduce": 1, "mm_all_reduce_norm": 1}),
    "llama_norm": (llama_norm, {"mm_all_reduce": 1, "mm_all_reduce_norm": 1}),
    "maximum": (maximum, {}),
    "used_twice": (used_twice, {}),
    "gather_for_two": (gather_for_two, {"all_gather_mm": 1}),
    "weight_of_a_product": (weight_of_a_product, {}),
    "gathered_elsewhere": (gathered_elsewhere, {"all_gather_mm": 1}, {}),  # not if rows have more dimensions
}


def without_code(graph_module, inputs):
    """Inductor up to the pass; the graph then runs as it is, so that nothing waits for a C++ compiler."""
    from functorch.compile import make_boxed_func
    from shingle.torch import inductor
    from torch._inductor.compile_fx import compile_fx

    def run_pass(graph_module, inputs, **_):
        inductor.enable()(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        return make_boxed_func(graph_module.forward)

    return compile_fx(graph_module, inputs, inner_compile=run_pass)


def pass_case(name, backend):
    from shingle.torch import inductor

    function, *each = CASES[name]
    torch._inductor.config.force_disable_caches = True
    for dtype, batch, dynamic in ((torch.float32, (), False), (torch.bfloat16, (3,), True)):
        torch._dynamo.reset()
        inputs = [torch.randn(*shape, dtype=dtype) for shape in ((4, *batch, K), (N, K), (4, *batch, N), (N,))]
        inputs = inputs[: function.__code__.co_argcount]
        with torch.no_grad():
            expected = function(*inputs)
            before = inductor.enable().matches.copy()
            got = torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
        wanted = each[-1] if batch else each[0]
        assert inductor.enable().matches - before == wanted, (inductor.enable().matches, before)
        torch.testing.assert_close(got, expected, atol=0.2 if dtype == torch.bfloat16 else 1e-4, rtol=0.05)


def other_rows_case():
    """Views whose first dimension is not made of the product's rows stay as they are."""
    from shingle.torch import inductor

    torch._inductor.config.force_disable_caches = True
    w = torch.randn(N, K)
    for rows, shape in ((1, (N,)), (3, (6, N // 2)), (4, (2, 2 * N))):

        def function(x, shape=shape):
            return collectives.reduce_scatter_tensor((x @ w.t()).view(shape), "sum", 0, dist.group.WORLD)

        torch._dynamo.reset()
        x = torch.randn(rows, K)
        with torch.no_grad():
            before = inductor.enable().matches.copy()
            got = torch.compile(function, backend=without_code)(x)
        assert inductor.enable().matches == before
        torch.testing.assert_close(got, function(x))


def test_views_of_other_rows_are_left_alone():
    on_ranks(2, other_rows_case)


@pytest.mark.parametrize("name", CASES)
def test_pass(name):
    on_ranks(2, pass_case, name, without_code)


def test_a_pass_that_matches_nothing_warns():
    program = "from shingle.torch import inductor; inductor.enable()"
    for more, warns in (("", True), ("; from shingle.torch.counters import counts; counts['inductor.x'] += 1", False)):
        run = subprocess.run([sys.executable, "-c", program + more], capture_output=True, text=True, check=True)
        assert ("WARNING: inductor.enable() replaced nothing" in run.stderr) == warns, run.stderr


@pytest.mark.parametrize("name", ["layer", "norm"])
def test_pass_in_inductor(name):
    on_ranks(2, pass_case, name, "inductor")


def backward_case():
    from shingle.torch import inductor

    torch._dynamo.reset()
    torch._inductor.config.force_disable_caches = True
    before = inductor.enable().matches.copy()
    x, w = torch.randn(4, K), torch.randn(N, K)
    gradients = []
    for function in (layer, torch.compile(layer, backend=without_code, dynamic=True)):
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_(False)]
        function(*leaves).square().sum().backward()
        gradients.append(leaves[0].grad)
    torch.testing.assert_close(*gradients)
    assert inductor.enable().matches - before == {"all_gather_mm": 2, "mm_reduce_scatter": 2}


def test_backward_graphs_are_rewritten_too():
    on_ranks(2, backward_case)
