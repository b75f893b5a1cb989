"""World, Context and Call on host ranks of this process."""

import os

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
from shingle import _abi, errors  # noqa: E402
from shingle.context import Context, Routing, World  # noqa: E402

if not os.path.exists(_abi.library_path()):
    pytest.skip("no libshingle.so: set SHINGLE_LIBRARY", allow_module_level=True)

N, K = 6, 4


@pytest.fixture(scope="module")
def context():
    context = Context(World(backend="host", ranks=2))
    yield context
    context.close()


def dense(array):
    return array.ctypes.data, array.shape[0], 0


def test_world_knows_its_ranks(context):
    assert context.world.size == 2
    assert context.world.local_ranks == [0, 1]


def test_gemm_all_reduce_takes_any_m_and_other_addresses(context):
    op = context.declare("gemm+allreduce", m=16, n=N, k=K, transpose_b=1, bias=1)
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "b", "bias", "out")])
    bias = np.arange(N, dtype=np.float32)[None]
    for m in (16, 1, 5):
        x = [np.random.rand(m, K).astype(np.float32) for _ in range(2)]
        w = [np.random.rand(N, K).astype(np.float32) for _ in range(2)]
        out = [np.full((m, N), np.nan, np.float32) for _ in range(2)]
        call(m, [dense(at) for r in (0, 1) for at in (x[r], w[r], bias, out[r])])
        context.synchronize()
        for got in out:
            np.testing.assert_allclose(got, x[0] @ w[0].T + x[1] @ w[1].T + bias, rtol=1e-5)
    assert context.arena_bytes > 0
    assert op.mechanism(5) in op.plan_json(5)


def test_all_to_all_takes_a_routing(context):
    op = context.declare("alltoall+gemm", m=8, n=N, k=K, transpose_b=1)
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "b", "out")])
    splits = [[1, 3], [2, 0]]
    x = [np.random.rand(sum(row), K).astype(np.float32) for row in splits]
    w = [np.random.rand(N, K).astype(np.float32) for _ in range(2)]
    received = [np.concatenate([x[0][:1], x[1][:2]]), x[0][1:]]
    out = [np.full((len(rows), N), np.nan, np.float32) for rows in received]
    call(4, [dense(at) for r in (0, 1) for at in (x[r], w[r], out[r])], routing=Routing.of_splits(splits))
    context.synchronize()
    for got, rows, weight in zip(out, received, w):
        np.testing.assert_allclose(got, rows @ weight.T, rtol=1e-5)


def test_a_call_takes_its_own_routing(context):
    op = context.declare("gemm+alltoall", m=8, n=N, k=K, transpose_b=1)
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "b", "out")])
    matrices = [dense(np.ones(shape, np.float32)) for _ in (0, 1) for shape in ((4, K), (N, K), (4, N))]
    call(0, matrices, routing=Routing.of_splits([[1, 3], [3, 1]]))
    context.synchronize()
    with pytest.raises(errors.InvalidArgument, match="routing"):
        call(0, matrices)
    op = context.declare("gemm+allreduce", m=4, n=N, k=K, transpose_b=1)
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "b", "out")])
    with pytest.raises(errors.InvalidArgument, match="routing"):
        call(4, matrices, routing=Routing.of_splits([[1, 3], [3, 1]]))
    call(4, matrices)
    context.synchronize()


def test_numbers_do_not_wrap_around(context):
    with pytest.raises(errors.InvalidArgument, match="unknown field 'transposeb'; expected one of op, m"):
        context.declare("gemm+allreduce", m=4, n=N, k=K, transposeb=1)
    with pytest.raises(errors.InvalidArgument, match="m = 18446744073709551624 does not fit into 64 bits"):
        context.declare("gemm+allreduce", m=2**64 + 8, n=N, k=K)
    with pytest.raises(errors.InvalidArgument, match="ranks = 4294967298 does not fit"):
        World(backend="host", ranks=2**32 + 2)
    call = context.declare("gemm+allreduce", m=4, n=N, k=K).prepare([(0, "a")])
    with pytest.raises(errors.InvalidArgument, match="m = 18446744073709551620"):
        call(2**64 + 4, [(0, 0, 0)])
    with pytest.raises(errors.InvalidArgument, match=r"destinations\[1\] has 1 to 4294967296"):
        Routing([[0], [1, 2**32]])
    with pytest.raises(errors.InvalidArgument, match=r"splits\[0\] = \[-1, 4\]"):
        Routing.of_splits([[-1, 4], [4, 4]])


def alike(*of_ranks):
    """All ranks have what rank 0 has."""
    for of in of_ranks:
        of[1:] = of[:1] * (len(of) - 1)


@pytest.mark.parametrize("mechanism", ["sequential", "fused"])
@pytest.mark.parametrize("name", ["moe", "moe-tp", "moe+allreduce"])
def test_mixture_of_experts(context, name, mechanism):
    inner, topk, tokens = 12, 2, (5, 3)
    sliced, replicated = name != "moe", name == "moe+allreduce"
    experts = 5 if sliced else 4  # ranks have slices of all experts, or some of the experts each
    op = context.declare(name, m=8, n=N, k=K, inner=inner // 2 if sliced else inner, transpose_b=1, activation="swiglu",
                         experts=experts, topk=topk, mechanism=mechanism)  # fmt: skip
    roles = ("a", "b", "down", "topk_weights", "out")
    call = op.prepare([(rank, role) for rank in (0, 1) for role in roles])
    random = np.random.default_rng(3)
    x = [random.standard_normal((count, K), np.float32) for count in tokens]
    up = random.standard_normal((experts, 2 * inner, K), np.float32)
    down = random.standard_normal((experts, N, inner), np.float32)
    chosen = [random.permuted(np.tile(np.arange(experts), (count, 1)), axis=1)[:, :topk] for count in tokens]
    weights = [random.random((count, topk), np.float32) for count in tokens]
    if replicated:
        alike(x, chosen, weights)
    out = [np.full((len(of), N), np.nan, np.float32) for of in x]
    if sliced:
        own = [slice(0, inner // 2), slice(inner // 2, inner)]
        ups = [up.reshape(experts, 2, inner, K)[:, :, at].reshape(-1, K) for at in own]
        downs = [np.ascontiguousarray(down[:, :, at]).reshape(-1, inner // 2) for at in own]
    else:
        own = [slice(0, 2), slice(2, 4)]
        ups, downs = [np.vstack(up[at]) for at in own], [np.vstack(down[at]) for at in own]
    tables = [np.ascontiguousarray(of.T, np.int32) for of in (chosen[:1] if replicated else chosen)]
    for routing in (
        Routing([list(of.ravel()) for of in tables], experts),
        Routing.in_memory([of.ctypes.data for of in tables], [of.size for of in tables], experts, tables),
    ):
        for of in out:
            of.fill(np.nan)
        call(0, [dense(at) for r in (0, 1) for at in (x[r], ups[r], downs[r], weights[r], out[r])], routing=routing)
        context.synchronize()
        for rank in (0, 1):
            gate, value = np.split(np.einsum("tk,tjik->tji", x[rank], up[chosen[rank]]), 2, axis=2)
            hidden = gate / (1 + np.exp(-gate)) * value
            each = np.einsum("tji,tjni->tjn", hidden, down[chosen[rank]])
            np.testing.assert_allclose(out[rank], np.einsum("tj,tjn->tn", weights[rank], each), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [(name, mechanism) for name in ("moe", "moe-tp", "moe+allreduce")
     for mechanism in ("sequential", "chunked", "signal", "fused") if (name, mechanism) != ("moe+allreduce", "chunked")],
)  # fmt: skip
def test_mixture_of_experts_by_ids(context, mechanism, name):
    """The device routes, and drops what exceeds the capacity, as the host would do it here."""
    inner, experts, topk, capacity, most = 12, 4, 2, 3, 8
    op = context.declare(name, m=most, n=N, k=K, inner=inner if name == "moe" else inner // 2, transpose_b=1,
                         activation="swiglu", experts=experts, topk=topk, capacity=capacity,
                         mechanism=mechanism)  # fmt: skip
    roles = ("a", "b", "down", "topk_weights", "topk_ids", "dropped", "out")
    call = op.prepare([(rank, role) for rank in (0, 1) for role in roles])
    random = np.random.default_rng(4)
    up = random.standard_normal((experts, 2 * inner, K), np.float32)
    down = random.standard_normal((experts, N, inner), np.float32)
    if name == "moe":
        own = [slice(0, 2), slice(2, 4)]
        ups, downs = [np.vstack(up[at]) for at in own], [np.vstack(down[at]) for at in own]
    else:  # columns of the hidden layer of each expert
        own = [slice(0, inner // 2), slice(inner // 2, inner)]
        ups = [np.vstack([half[at] for w in up for half in (w[:inner], w[inner:])]) for at in own]
        downs = [np.vstack(down[:, :, at]) for at in own]
    for tokens in ((8, 8), (5, 0), (1, 7)):
        x = [random.standard_normal((count, K), np.float32) for count in tokens]
        ids = [random.integers(-1, experts, (count, topk), np.int32) for count in tokens]
        weights = [random.random((count, topk), np.float32) for count in tokens]
        if name == "moe+allreduce":
            alike(x, ids, weights)
        dropped = [np.full((1, 2), -1, np.int32) for _ in tokens]
        out = [np.full((len(of), N), np.nan, np.float32) for of in x]
        call(most, [dense(at) for r in (0, 1)
                    for at in (x[r], ups[r], downs[r], weights[r], ids[r], dropped[r], out[r])])  # fmt: skip
        context.synchronize()
        for rank in (0, 1):
            taken, expected = dict.fromkeys(range(experts), 0), np.zeros_like(out[rank])
            for choice in range(topk):
                for token, expert in enumerate(ids[rank][:, choice]):
                    if expert < 0 or taken[expert] == capacity:
                        continue
                    taken[expert] += 1
                    gate, value = np.split(up[expert] @ x[rank][token], 2)
                    expected[token] += weights[rank][token, choice] * (
                        down[expert] @ (gate / (1 + np.exp(-gate)) * value)
                    )
            assert dropped[rank].tolist() == [[(ids[rank] >= 0).sum() - sum(taken.values()), 0]]
            np.testing.assert_allclose(out[rank], expected, rtol=1e-4, atol=1e-4)


def test_errors_name_what_is_wrong(context):
    with pytest.raises(errors.InvalidArgument, match="gemm.nose"):
        context.declare("gemm+nose", m=1, n=1, k=1)
    with pytest.raises(errors.InvalidArgument, match="dtype = 'int8'"):
        context.declare("gemm+allreduce", m=1, n=1, k=1, dtype="int8")
    op = context.declare("gemm+allreduce", m=4, n=N, k=K)
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "b", "out")])
    with pytest.raises(errors.InvalidArgument, match="m = 5"):
        call(5, [(0, 0, 0)] * 6)
    with pytest.raises(ValueError):
        call(4, [(0, 0, 0)] * 5)


def test_closed_context_refuses():
    context = Context(World(backend="host", ranks=1))
    context.close()
    with pytest.raises(errors.InvalidArgument, match="closed"):
        context.synchronize()
