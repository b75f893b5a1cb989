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


@pytest.mark.parametrize("mechanism", ["sequential", "fused"])
def test_mixture_of_experts(context, mechanism):
    inner, experts, topk, tokens = 12, 4, 2, (5, 3)
    op = context.declare("moe", m=8, n=N, k=K, inner=inner, transpose_b=1, activation="swiglu", experts=experts,
                         topk=topk, mechanism=mechanism)  # fmt: skip
    roles = ("a", "b", "down", "topk_weights", "out")
    call = op.prepare([(rank, role) for rank in (0, 1) for role in roles])
    random = np.random.default_rng(3)
    x = [random.standard_normal((count, K), np.float32) for count in tokens]
    up = random.standard_normal((experts, 2 * inner, K), np.float32)
    down = random.standard_normal((experts, N, inner), np.float32)
    chosen = [random.permuted(np.tile(np.arange(experts), (count, 1)), axis=1)[:, :topk] for count in tokens]
    weights = [random.random((count, topk), np.float32) for count in tokens]
    out = [np.full((count, N), np.nan, np.float32) for count in tokens]
    own = [slice(0, 2), slice(2, 4)]
    ups, downs = [np.vstack(up[at]) for at in own], [np.vstack(down[at]) for at in own]
    call(0, [dense(at) for r in (0, 1) for at in (x[r], ups[r], downs[r], weights[r], out[r])],
         routing=Routing([list(of.T.ravel()) for of in chosen], experts))  # fmt: skip
    context.synchronize()
    for rank in (0, 1):
        gate, value = np.split(np.einsum("tk,tjik->tji", x[rank], up[chosen[rank]]), 2, axis=2)
        hidden = gate / (1 + np.exp(-gate)) * value
        each = np.einsum("tji,tjni->tjn", hidden, down[chosen[rank]])
        np.testing.assert_allclose(out[rank], np.einsum("tj,tjn->tn", weights[rank], each), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mechanism", ["sequential", "fused"])
def test_mixture_of_experts_by_ids(context, mechanism):
    """The device routes, and drops what exceeds the capacity, as the host would do it here."""
    inner, experts, topk, capacity, most = 12, 4, 2, 3, 8
    op = context.declare("moe", m=most, n=N, k=K, inner=inner, transpose_b=1, activation="swiglu", experts=experts,
                         topk=topk, capacity=capacity, mechanism=mechanism)  # fmt: skip
    roles = ("a", "b", "down", "topk_weights", "topk_ids", "dropped", "out")
    call = op.prepare([(rank, role) for rank in (0, 1) for role in roles])
    random = np.random.default_rng(4)
    up = random.standard_normal((experts, 2 * inner, K), np.float32)
    down = random.standard_normal((experts, N, inner), np.float32)
    own = [slice(0, 2), slice(2, 4)]
    ups, downs = [np.vstack(up[at]) for at in own], [np.vstack(down[at]) for at in own]
    for tokens in ((8, 8), (5, 0), (1, 7)):
        x = [random.standard_normal((count, K), np.float32) for count in tokens]
        ids = [random.integers(-1, experts, (count, topk), np.int32) for count in tokens]
        weights = [random.random((count, topk), np.float32) for count in tokens]
        dropped = [np.full((1, 2), -1, np.int32) for _ in tokens]
        out = [np.full((count, N), np.nan, np.float32) for count in tokens]
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


def attention(q, k, v):
    """Causal attention of [tokens, heads, head_dim], where consecutive heads of q share one of k and v."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2])
    scores[:, np.triu_indices(len(q), 1)[0], np.triu_indices(len(q), 1)[1]] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(axis=2, keepdims=True), v)


@pytest.mark.parametrize("mechanism", [None, "sequential", "ring slices=2", "ring engines=1 slices=2"])
def test_ulysses_attention_takes_any_number_of_tokens(context, mechanism):
    heads, kv_heads, dim = 8, 4, 4
    op = context.declare(
        "ulysses-attention", m=40, n=heads * dim, k=heads * dim, heads=heads, kv_heads=kv_heads, head_dim=dim, causal=1,
        mechanism=mechanism,
    )  # fmt: skip
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "keys", "values", "out")])
    for m in (40, 7, 1):
        q, k, v = (np.random.randn(m, count, dim).astype(np.float32) for count in (heads, kv_heads, kv_heads))
        shards = slice(0, (m + 1) // 2), slice((m + 1) // 2, m)
        own = [[np.ascontiguousarray(x[at].reshape(-1, x[0].size)) for x in (q, k, v)] for at in shards]
        out = [np.full((len(rows[0]), heads * dim), np.nan, np.float32) for rows in own]
        call(m, [dense(matrix) for rows, result in zip(own, out) for matrix in (*rows, result)])
        context.synchronize()
        np.testing.assert_allclose(np.concatenate(out), attention(q, k, v).reshape(m, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mechanism", [None, "sequential", "ring slices=2", "ring engines=1"])
@pytest.mark.parametrize("zigzag", [False, True])
def test_ring_attention_takes_any_number_of_tokens(context, mechanism, zigzag):
    heads, kv_heads, dim = 6, 3, 4  # which two ranks do not divide
    op = context.declare(
        "allgather+attention", m=40, n=heads * dim, k=heads * dim, heads=heads, kv_heads=kv_heads, head_dim=dim,
        causal=1, row_order=2 if zigzag else 0, mechanism=mechanism,
    )  # fmt: skip
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "keys", "values", "out")])
    for m in (40, 7, 1):
        q, k, v = (np.random.randn(m, count, dim).astype(np.float32) for count in (heads, kv_heads, kv_heads))
        shards = shards_of(m, zigzag)
        own = [[np.ascontiguousarray(x[at].reshape(-1, x[0].size)) for x in (q, k, v)] for at in shards]
        out = [np.full((len(rows[0]), heads * dim), np.nan, np.float32) for rows in own]
        call(m, [dense(matrix) for rows, result in zip(own, out) for matrix in (*rows, result)])
        context.synchronize()
        wanted = attention(q, k, v).reshape(m, -1)
        for rows, result in zip(shards, out):
            np.testing.assert_allclose(result, wanted[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mechanism", [None, "sequential", "ring slices=2", "ring engines=1"])
@pytest.mark.parametrize("zigzag", [False, True])
def test_backward_of_ring_attention(context, mechanism, zigzag):
    heads, kv_heads, dim = 6, 3, 4
    op = context.declare(
        "attention-backward", m=40, n=heads * dim, k=heads * dim, heads=heads, kv_heads=kv_heads, head_dim=dim,
        causal=1, row_order=2 if zigzag else 0, mechanism=mechanism,
    )  # fmt: skip
    inputs = "a", "keys", "values", "grad", "attended", "lse"
    outputs = "out", "keys_grad", "values_grad"
    call = op.prepare([(rank, role) for rank in (0, 1) for role in (*inputs, *outputs)])
    for m in (40, 7, 1):
        q, k, v, grad = (np.random.randn(m, count, dim) for count in (heads, kv_heads, kv_heads, heads))
        out, lse, gradients = attention_gradients(q, k, v, grad)
        shards = shards_of(m, zigzag)
        given = [[shard(x, at) for x in (q, k, v, grad, out, lse)] for at in shards]
        found = [[np.full_like(rows[i], np.nan) for i in range(3)] for rows in given]
        call(m, [dense(matrix) for rows, result in zip(given, found) for matrix in (*rows, *result)])
        context.synchronize()
        for at, result in zip(shards, found):
            for got, wanted in zip(result, gradients):
                np.testing.assert_allclose(got, shard(wanted, at), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mechanism", [None, "sequential", "ring slices=2", "ring engines=1"])
@pytest.mark.parametrize("zigzag", [False, True])
def test_ring_attention_returns_its_log_sum_exp(context, mechanism, zigzag):
    heads, kv_heads, dim = 6, 3, 4
    op = context.declare(
        "allgather+attention", m=40, n=heads * dim, k=heads * dim, heads=heads, kv_heads=kv_heads, head_dim=dim,
        causal=1, returns_lse=1, row_order=2 if zigzag else 0, mechanism=mechanism,
    )  # fmt: skip
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "keys", "values", "out", "out_lse")])
    for m in (40, 7, 1):
        q, k, v = (np.random.randn(m, count, dim) for count in (heads, kv_heads, kv_heads))
        *wanted, _ = attention_gradients(q, k, v, q)
        shards = shards_of(m, zigzag)
        given = [[shard(x, at) for x in (q, k, v)] for at in shards]
        found = [[np.full((len(at), columns), np.nan, np.float32) for columns in (heads * dim, heads)] for at in shards]
        call(m, [dense(matrix) for rows, result in zip(given, found) for matrix in (*rows, *result)])
        context.synchronize()
        for at, result in zip(shards, found):
            for got, whole in zip(result, wanted):
                np.testing.assert_allclose(got, shard(whole, at), rtol=1e-4, atol=1e-5)


def attention_gradients(q, k, v, grad):
    """The result of causal attention, its log-sum-exp, and the gradients of Q, K and V, step by step."""
    sharing = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(x, sharing, axis=1) for x in (k, v))
    scale = 1 / np.sqrt(q.shape[2])
    scores = np.einsum("ihd,jhd->hij", q, keys) * scale
    scores[:, np.triu_indices(len(q), 1)[0], np.triu_indices(len(q), 1)[1]] = -np.inf
    lse = np.log(np.exp(scores).sum(axis=2))
    weights = np.exp(scores - lse[:, :, None])
    out = np.einsum("hij,jhd->ihd", weights, values)
    of_weights = np.einsum("ihd,jhd->hij", grad, values)
    of_scores = weights * (of_weights - (weights * of_weights).sum(axis=2, keepdims=True)) * scale

    def group(x):
        return x.reshape(len(x), k.shape[1], sharing, -1).sum(axis=2)

    of_keys, of_values = np.einsum("hij,ihd->jhd", of_scores, q), np.einsum("hij,ihd->jhd", weights, grad)
    return out, lse.T, (np.einsum("hij,jhd->ihd", of_scores, keys), group(of_keys), group(of_values))


def shards_of(m, zigzag):
    """The tokens of two ranks."""
    tokens, chunk = np.arange(m), (m + 3) // 4
    at = np.minimum(tokens // chunk, 3)
    if zigzag:
        return [np.concatenate((tokens[at == rank], tokens[at == 3 - rank])) for rank in (0, 1)]
    return [tokens[: (m + 1) // 2], tokens[(m + 1) // 2 :]]


def shard(x, tokens):
    return np.ascontiguousarray(x[tokens].reshape(len(tokens), x[0].size), dtype=np.float32)


@pytest.mark.parametrize("mechanism", ["sequential", "ring row-parallel", "fused"])
def test_attention_reduce_scatter(context, mechanism):
    m, n, heads, kv_heads, dim = 30, 6, 4, 2, 8
    op = context.declare(
        "attention+reducescatter", m=m, n=n, k=heads // 2 * dim, heads=heads, kv_heads=kv_heads, head_dim=dim, causal=1,
        transpose_b=1, mechanism=mechanism,
    )  # fmt: skip
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "keys", "values", "b", "out")])
    q, k, v = (np.random.randn(m, count, dim).astype(np.float32) for count in (heads, kv_heads, kv_heads))
    w = np.random.randn(n, heads * dim).astype(np.float32)

    def of(rank, x):  # a rank's heads
        part = x.shape[1] // 2
        return np.ascontiguousarray(x[:, rank * part : (rank + 1) * part].reshape(len(x), -1))

    matrices = [[*(of(rank, x) for x in (q, k, v, w[:, :, None])), np.full((m // 2, n), np.nan, np.float32)]
                for rank in (0, 1)]  # fmt: skip
    call(m, [dense(matrix) for rank in matrices for matrix in rank])
    context.synchronize()
    wanted = attention(q, k, v).reshape(m, -1) @ w.T
    np.testing.assert_allclose(np.concatenate([rank[-1] for rank in matrices]), wanted, rtol=1e-4, atol=1e-4)


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
