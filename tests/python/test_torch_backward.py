"""What backward of all_gather_gemm issues, in order: its products overlap the collectives."""

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import overlapped_gradients, sequential  # noqa: E402
from shingle.torch.choices import PREDICTED  # noqa: E402
from shingle.torch.groups import find_group  # noqa: E402
from shingle.torch.timing import forced  # noqa: E402
from thread_ranks import engines, on_threads  # noqa: E402

K, N = 8, 6
BEGIN = ["all-gather", "product", "reduce-scatter", "wait for all-gather"]
END = "wait for reduce-scatter"


@contextlib.contextmanager
def recorded():
    """The calls of c10d and the products of the ops."""
    seen = []

    class Noted:
        def __init__(self, work, name):
            self.work, self.name = work, name

        def wait(self):
            seen.append(f"wait for {self.name}")
            return self.work.wait()

    def noted(function, name):
        def call(*args, **options):
            seen.append(name)
            result = function(*args, **options)
            return Noted(result, name) if options.get("async_op") else result

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather_into_tensor", noted(dist.all_gather_into_tensor, "all-gather"))
        patch.setattr(dist, "reduce_scatter_tensor", noted(dist.reduce_scatter_tensor, "reduce-scatter"))
        for name in ("__matmul__", "addmm_"):
            patch.setattr(torch.Tensor, name, noted(getattr(torch.Tensor, name), "product"))
        yield seen


def inputs(m, weights=1, needs=(True, True)):
    """This rank's rows of m, weights, and gradients of their products."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    shard = -(-m // ranks)
    x = torch.randn(max(0, min(shard, m - rank * shard)), K)
    ws = [torch.randn(N + i, K) for i in range(weights)]
    grads = [torch.randn(m, N + i) for i in range(weights)]
    return x.requires_grad_(needs[0]), [w.requires_grad_(needs[1]) for w in ws], grads


def order_case(m, weights, needs, keeps, compiled, expected):
    x, ws, grads = inputs(m, weights, needs)

    def forward(x, *ws):
        out = st.all_gather_gemm(x, ws, rows=m, return_gathered=keeps)
        return out[1] if keeps else out

    if compiled:
        forward = torch.compile(forward, backend="aot_eager", fullgraph=True)
    outs = forward(x, *ws)
    with recorded() as seen:
        torch.autograd.backward(outs, grads)
    assert seen == expected
    # In the order of before: the same bits.
    group = dist.group.WORLD.group_name
    with torch.no_grad():
        if needs[0]:
            dx = torch.ops.shingle.gemm_reduce_scatter(torch.cat(grads, 1), torch.cat(ws).t(), group)
            assert torch.equal(x.grad, dx)
        if needs[1]:
            rows = torch.ops.shingle.all_gather(x, group, m)
            assert all(torch.equal(w.grad, grad.t() @ rows) for w, grad in zip(ws, grads))


BOTH = True, True


@pytest.mark.parametrize("m", [12, 7, 1])  # divided by the ranks, uneven, fewer than ranks
@pytest.mark.parametrize("weights", [1, 2])
def test_products_overlap_collectives(m, weights):
    on_ranks(3, order_case, m, weights, BOTH, False, False, [*BEGIN, *["product"] * weights, END])


def test_products_overlap_collectives_in_compiled_graphs():
    on_ranks(2, order_case, 6, 1, BOTH, False, True, [*BEGIN, "product", END])


def test_kept_rows_are_not_gathered_again():
    for compiled, products in ((False, ["product"]), (True, [])):
        on_ranks(2, order_case, 6, 1, BOTH, True, compiled, ["product", "reduce-scatter", *products])


def test_nothing_is_gathered_without_need():
    on_ranks(2, order_case, 6, 1, (True, False), False, False, ["product", "reduce-scatter"])
    on_ranks(2, order_case, 6, 1, (False, True), False, False, ["all-gather", "product"])


def engines_case(rank, ranks, m):
    host, group = engines(ranks), find_group(dist.group.WORLD.group_name)
    x, (w,), (grad,) = inputs(m)
    for _ in range(2):
        got, expected = [], []
        with forced(PREDICTED):
            got.append(overlapped_gradients.overlapped_scatter(grad, w.t(), x, group, lambda rows: got.append(rows.clone())))
        expected.append(sequential.scatter_gemm(grad, w.t(), x, group, lambda rows: expected.append(rows.clone())))
        assert torch.equal(got[0], expected[0]), "the gathered rows"
        torch.testing.assert_close(got[1], expected[1])
        x = x + 1
    return [(shape.op, shape.gathers, rows) for shape, rows in host.shapes]


@pytest.mark.parametrize("m", [12, 7])
def test_engines_gather_beside_the_product(m):
    rows = -(-m // 3) * 3
    for shapes in on_threads(3, engines_case, 3, m).values():
        assert shapes == [("allgather", K, rows), ("gemm+reducescatter", K, m)] * 2


def main_grad_case(deferred):
    from shingle.torch.nn import ColumnParallelLinear

    x, (w,), (grad,) = inputs(6)
    options = {"sequence_parallel": True, "defer_weight_gradient": deferred, "bias": False}
    layer = ColumnParallelLinear(K, N * dist.get_world_size(), **options)
    layer.weight.main_grad, layer.weight.grad_added_to_main_grad = torch.zeros(N, K), False
    with torch.no_grad():
        layer.weight.copy_(w)
    out = layer(x)
    with recorded() as seen:
        out.backward(grad)
    assert deferred != layer.weight.main_grad.any()
    layer.backward_dw()
    assert seen == [*BEGIN, *([] if deferred else ["product"]), END]
    group = dist.group.WORLD.group_name
    assert torch.equal(x.grad, torch.ops.shingle.gemm_reduce_scatter(grad, w.detach().t(), group))
    rows = torch.ops.shingle.all_gather(x.detach(), group)
    assert torch.equal(layer.weight.main_grad, torch.zeros(N, K).addmm_(grad.t(), rows))


@pytest.mark.parametrize("deferred", [False, True])
def test_products_overlap_collectives_with_main_grad(deferred):
    on_ranks(2, main_grad_case, deferred)
