"""Operators with attention in contexts of host ranks of this process, against the formulas in float64."""

import os

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")
from shingle import _abi, errors  # noqa: E402
from shingle.context import Context, World  # noqa: E402

if not os.path.exists(_abi.library_path()):
    pytest.skip("no libshingle.so: set SHINGLE_LIBRARY", allow_module_level=True)

INPUTS, OUTPUTS = ("a", "keys", "values", "grad", "attended", "lse"), ("out", "keys_grad", "values_grad")


@pytest.fixture(scope="module")
def contexts():
    """A context for each number of ranks."""
    made = {ranks: Context(World(backend="host", ranks=ranks)) for ranks in (1, 2, 4)}
    yield made
    for context in made.values():
        context.close()


def dense(array):
    return array.ctypes.data, array.shape[0], 0


def mask_of(m, causal, lengths):
    """True where the query of a row sees the key of a column."""
    sequence = np.repeat(np.arange(len(lengths or (m,))), lengths or (m,))
    seen = sequence[:, None] == sequence[None]
    return np.tril(seen) if causal else seen


def attention(q, k, v, seen):
    """The result and its log-sum-exp [tokens, heads], of [tokens, heads, head_dim]. Query heads share those of k and v."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = np.where(seen, np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[2]), -np.inf)
    lse = np.log(np.exp(scores).sum(axis=2))
    return np.einsum("hij,jhd->ihd", np.exp(scores - lse[:, :, None]), v), lse.T


def gradients(q, k, v, grad, seen):
    """Gradients of q, k and v, step by step."""
    sharing, scale = q.shape[1] // k.shape[1], 1 / np.sqrt(q.shape[2])
    keys, values = (np.repeat(x, sharing, axis=1) for x in (k, v))
    _, lse = attention(q, k, v, seen)
    weights = np.where(seen, np.exp(np.einsum("ihd,jhd->hij", q, keys) * scale - lse.T[:, :, None]), 0)
    of_weights = np.einsum("ihd,jhd->hij", grad, values)
    of_scores = weights * (of_weights - (weights * of_weights).sum(axis=2, keepdims=True)) * scale

    def group(x):
        return x.reshape(len(x), k.shape[1], sharing, -1).sum(axis=2)

    of_keys, of_values = np.einsum("hij,ihd->jhd", of_scores, q), np.einsum("hij,ihd->jhd", weights, grad)
    return np.einsum("hij,jhd->ihd", of_scores, keys), group(of_keys), group(of_values)


def shards_of(m, ranks, zigzag):
    """The tokens of each rank."""
    tokens, chunks = np.arange(m), 2 * ranks if zigzag else ranks
    chunk = tokens // -(-m // chunks)
    return [tokens[(chunk == rank) | (chunk == chunks - 1 - rank if zigzag else False)] for rank in range(ranks)]


def shard(x, tokens):
    return np.ascontiguousarray(x[tokens].reshape(len(tokens), x[0].size), dtype=np.float32)


class Attention:
    """A declared attention of a context, on all ranks of it."""

    def __init__(self, context, op, m, heads, kv_heads, dim, causal, zigzag, mechanism, returns_lse=False):
        self.context, self.zigzag, self.ranks, self.causal = context, zigzag, context.world.size, causal
        self.counts, self.dim = (heads, kv_heads, kv_heads, heads), dim
        self.backward, self.returns_lse = op == "attention-backward", returns_lse
        declared = context.declare(
            op, m=m, n=heads * dim, k=heads * dim, heads=heads, kv_heads=kv_heads, head_dim=dim, causal=causal,
            row_order=2 if zigzag else 0, returns_lse=returns_lse, mechanism=mechanism,
        )  # fmt: skip
        forward = "a", "keys", "values", "out", *(["out_lse"] if returns_lse else [])
        roles = (*INPUTS, *OUTPUTS) if self.backward else forward
        self.call = declared.prepare([(rank, role) for rank in range(self.ranks) for role in roles])

    def check(self, m, lengths, random):
        """One call on random matrices."""
        q, k, v, grad = (random.standard_normal((m, count, self.dim)) for count in self.counts)
        seen = mask_of(m, self.causal, lengths)
        out, lse = attention(q, k, v, seen)
        inputs, wanted = [q, k, v], [out, lse] if self.returns_lse else [out]
        if self.backward:
            inputs, wanted = [q, k, v, grad, out, lse], gradients(q, k, v, grad, seen)
        shards = shards_of(m, self.ranks, self.zigzag)
        given = [[shard(x, at) for x in inputs] for at in shards]
        found = [[np.full_like(shard(x, at), np.nan) for x in wanted] for at in shards]
        matrices = [dense(matrix) for rows, result in zip(given, found) for matrix in (*rows, *result)]
        self.call(m, matrices, lengths=lengths)
        self.context.synchronize()
        for at, results in zip(shards, found):
            for got, whole in zip(results, wanted):
                np.testing.assert_allclose(got, shard(whole, at), rtol=1e-4, atol=2e-5)


MECHANISMS = (None, "sequential", "ring slices=2", "ring engines=1 slices=2", "ring mover=store slices=2")
LENGTHS = {40: [None, (40,), (3, 30, 7)], 7: [None, (1, 1, 5)], 1: [None]}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("op, zigzag", [("ulysses-attention", False), ("allgather+attention", False),
                                        ("allgather+attention", True), ("attention-backward", False),
                                        ("attention-backward", True)])  # fmt: skip
def test_attention_takes_any_number_of_tokens(contexts, op, zigzag, mechanism):
    random = np.random.default_rng(3)
    heads, kv_heads = (8, 4) if op == "ulysses-attention" else (6, 3)  # which two ranks do not divide
    for returns_lse in (False, True) if op == "allgather+attention" else (False,):
        declared = Attention(contexts[2], op, 40, heads, kv_heads, 4, True, zigzag, mechanism, returns_lse)
        for m, packed in LENGTHS.items():
            for lengths in packed:
                declared.check(m, lengths, random)


def draw(random, ranks):
    """A random problem: an Attention's arguments, and the lengths of three calls."""
    op = random.choice(["ulysses-attention", "allgather+attention", "attention-backward"])
    kv_heads = int(random.integers(1, 3)) * (ranks if op == "ulysses-attention" else 1)
    zigzag, causal = bool(random.integers(2)) and op != "ulysses-attention", bool(random.integers(2))
    sizes = kv_heads * int(random.integers(1, 4)), kv_heads, 4 * int(random.integers(1, 4))
    calls = [tuple(random.integers(1, 20, random.integers(1, 7)).tolist()) for _ in range(3)]
    returns_lse = op == "allgather+attention" and bool(random.integers(2))
    return (str(op), max(map(sum, calls)), *sizes, causal, zigzag, random.choice(MECHANISMS), returns_lse), calls


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_random_attention(contexts, ranks):
    random = np.random.default_rng(ranks)
    for number in range(40):
        problem, calls = draw(random, ranks)
        try:
            declared = Attention(contexts[ranks], *problem)
            for lengths in calls:
                declared.check(sum(lengths), lengths, random)
        except AssertionError as error:
            raise AssertionError(f"problem {number} on {ranks} ranks: {problem}, {lengths}") from error


@pytest.mark.parametrize("mechanism", ["sequential", "ring row-parallel", "fused"])
def test_attention_reduce_scatter(contexts, mechanism):
    m, n, heads, kv_heads, dim = 30, 6, 4, 2, 8
    op = contexts[2].declare(
        "attention+reducescatter", m=m, n=n, k=heads // 2 * dim, heads=heads, kv_heads=kv_heads, head_dim=dim, causal=1,
        transpose_b=1, mechanism=mechanism,
    )  # fmt: skip
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "keys", "values", "b", "out")])

    def of(rank, x):  # a rank's heads
        part = x.shape[1] // 2
        return np.ascontiguousarray(x[:, rank * part : (rank + 1) * part].reshape(len(x), -1))

    for lengths in (None, (12, 1, 17), (15, 15)):
        q, k, v = (np.random.randn(m, count, dim).astype(np.float32) for count in (heads, kv_heads, kv_heads))
        w = np.random.randn(n, heads * dim).astype(np.float32)
        matrices = [[*(of(rank, x) for x in (q, k, v, w[:, :, None])), np.full((m // 2, n), np.nan, np.float32)]
                    for rank in (0, 1)]  # fmt: skip
        call(m, [dense(matrix) for rank in matrices for matrix in rank], lengths=lengths)
        contexts[2].synchronize()
        out, _ = attention(q, k, v, mask_of(m, True, lengths))
        wanted = out.reshape(m, -1) @ w.T
        np.testing.assert_allclose(np.concatenate([rank[-1] for rank in matrices]), wanted, rtol=1e-4, atol=1e-4)


def test_wrong_lengths_are_named(contexts):
    declared = Attention(contexts[1], "allgather+attention", 8, 1, 1, 4, True, False, None)
    matrices = [(0, 8, 0)] * 4
    for lengths, match in (((3, 4), "7 tokens in 2 sequences, but m = 8"), ((8, 0), r"lengths\[1\] = 0")):
        with pytest.raises(errors.InvalidArgument, match=match):
            declared.call(8, matrices, lengths=lengths)
    product = contexts[1].declare("gemm+allreduce", m=8, n=4, k=4)
    call = product.prepare([(0, role) for role in ("a", "b", "out")])
    with pytest.raises(errors.InvalidArgument, match="is no attention"):
        call(8, [(0, 8, 0)] * 3, lengths=(3, 5))


def test_the_comparison_can_fail(contexts):
    declared = Attention(contexts[2], "allgather+attention", 8, 1, 1, 4, True, False, None)
    packed = declared.call
    declared.call = lambda m, matrices, lengths: packed(m, matrices)  # attends to one sequence
    with pytest.raises(AssertionError):
        declared.check(8, (3, 5), np.random.default_rng(1))
