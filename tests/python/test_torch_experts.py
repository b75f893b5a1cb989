"""moe on CPU against experts on one rank in float64, with gradients; its routing; its kernels without a GPU."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from comparisons import each_subset_matches  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch import experts as kernels  # noqa: E402
from shingle.torch import sequential  # noqa: E402
from shingle.torch.experts import routing  # noqa: E402
from shingle.torch.experts.slices import Slices  # noqa: E402
from shingle.torch.groups import find_group  # noqa: E402

HIDDEN, INNER, OUT = 8, 12, 10
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
RANKS = pytest.mark.parametrize("ranks", [1, 2, 4])
SPLITS = pytest.mark.parametrize("tensor_parallel", [False, True], ids=["whole experts", "slices"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["swiglu", "gelu", "silu", "relu", None])


def up_rows(activation):
    return 2 * INNER if activation == "swiglu" else INNER


def slice_of(w, dim, parts=1):
    """This rank's slice of each of equal parts of a dimension."""
    in_slices = w.unflatten(dim, (parts, dist.get_world_size(), -1))
    return in_slices.select(dim + 1, dist.get_rank()).flatten(dim, dim + 1)


def dense(x, up, down, ids, weights, activation):
    """The result for tokens whose experts are all here. ids, weights: [tokens, topk]."""
    hidden = sequential.activate(torch.einsum("tk,tjnk->tjn", x, up[ids]), activation)
    return torch.einsum("tj,tji,tjni->tn", weights, hidden, down[ids])


class Case:
    """Tokens of all ranks, their experts, and the experts of all ranks, in float64 and equal on all ranks.

    replicated: all ranks have the same tokens.
    """

    def __init__(self, tokens, experts, topk, activation="swiglu", choose=None, out=OUT, tensor_parallel=False,
                 replicated=False):  # fmt: skip
        self.rank, self.ranks, self.activation = dist.get_rank(), dist.get_world_size(), activation
        self.tensor_parallel, self.replicated = tensor_parallel, replicated
        tokens = [tokens[rank % len(tokens)] for rank in range(1 if replicated else self.ranks)]

        def random(*shape):
            return torch.randn(shape, dtype=torch.float64).requires_grad_()

        self.xs = [random(count, HIDDEN) for count in tokens]
        self.up, self.down = random(experts, up_rows(activation), HIDDEN), random(experts, out, INNER)
        self.ids = [choose(count, topk) if choose else torch.randint(experts, (count, topk)) for count in tokens]
        self.weights = [torch.rand(count, topk, dtype=torch.float64).requires_grad_() for count in tokens]
        self.outs = [self.dense(*of) for of in zip(self.xs, self.ids, self.weights)]
        self.coefficients = [torch.randn_like(out) for out in self.outs]
        sum((out * c).sum() for out, c in zip(self.outs, self.coefficients)).backward()

    def dense(self, x, ids, weights):
        return dense(x, self.up, self.down, ids, weights, self.activation)

    def mine(self, of_ranks):
        return of_ranks[0 if self.replicated else self.rank]

    def own_experts(self, up, down):
        """This rank's part of the weights of all experts."""
        if self.tensor_parallel:
            return slice_of(up, 1, 2 if self.activation == "swiglu" else 1), slice_of(down, 2)
        return tuple(whole.chunk(self.ranks)[self.rank] for whole in (up, down))

    def leaves(self, dtype):
        """x, up, down and weights of this rank."""
        weights = self.mine(self.weights).to(torch.promote_types(dtype, torch.float32))
        found = [of.to(dtype) for of in (self.mine(self.xs), *self.own_experts(self.up, self.down))]
        return [of.detach().clone().contiguous().requires_grad_() for of in (*found, weights)]

    def gradients(self):
        experts = self.own_experts(self.up.grad, self.down.grad)
        return [self.mine(self.xs).grad, *experts, self.mine(self.weights).grad]

    def call(self, x, up, down, weights, ids=None):
        ids = self.mine(self.ids) if ids is None else ids
        return st.moe(x, up, down, ids, weights, activation=self.activation, tensor_parallel=self.tensor_parallel)


def close(got, expected, what, bound=None):
    assert got is not None, f"{what} is missing"
    assert got.shape == expected.shape, (what, got.shape, expected.shape)
    error = (got.double() - expected.double()).norm() / max(expected.double().norm(), 1e-30)
    assert expected.numel() == 0 or error <= (bound or TOLERANCE[got.dtype]), f"{what} is off by {error}"


def moe_case(tensor_parallel, tokens, experts, topk, activation, dtype, choose=None):
    case = Case(tokens, experts, topk, activation, choose, tensor_parallel=tensor_parallel)
    leaves = case.leaves(dtype)
    out = case.call(*leaves)
    assert out.dtype == dtype
    close(out, case.mine(case.outs), "result")
    assert torch.equal(out, case.call(*leaves, case.mine(case.ids).int()))
    (out * case.mine(case.coefficients).to(dtype)).sum().backward()
    for name, leaf, expected in zip(("x", "w_up", "w_down", "topk_weights"), leaves, case.gradients()):
        close(leaf.grad, expected, f"gradient of {name}", TOLERANCE[dtype])
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.stride() == leaf.stride()


def all_to_the_last(count, topk):
    return torch.full((count, topk), 7)


@RANKS
@SPLITS
@ACTIVATIONS
def test_moe(ranks, tensor_parallel, activation):
    on_ranks(ranks, moe_case, tensor_parallel, [5, 3, 9, 1], 8, 2, activation, torch.float64)


@RANKS
@SPLITS
def test_moe_in_other_dtypes(ranks, tensor_parallel):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        on_ranks(ranks, moe_case, tensor_parallel, [40, 30], 8, 2, "swiglu", dtype)


@RANKS
@SPLITS
def test_empty_experts_ranks_without_tokens_and_duplicates(ranks, tensor_parallel):
    for tokens, experts, topk, activation, choose in (
        ([0, 5], 4, 1, "swiglu", None),  # topk 1, ranks without tokens
        ([1], 32, 3, "swiglu", None),  # most experts have no rows
        ([5, 0, 2], 8, 4, "swiglu", all_to_the_last),  # duplicates, one expert
        ([6], 4, 4, "silu", None),  # as many as there are experts, with duplicates
        ([0], 4, 2, "swiglu", None),  # no tokens at all
    ):
        on_ranks(ranks, moe_case, tensor_parallel, tokens, experts, topk, activation, torch.float64, choose)


def test_slices_of_experts_whose_number_the_ranks_do_not_divide():
    on_ranks(2, moe_case, True, [4, 3], 5, 2, "swiglu", torch.float64)


@RANKS
def test_more_choices_than_a_message_has_room_for(ranks):
    more = routing.LEAST_ROOM + 1
    on_ranks(ranks, moe_case, False, [more, 2], 4, 1, "relu", torch.float64)  # a second all-gather
    on_ranks(ranks, moe_case, False, [2, more], 4, 1, "relu", torch.float64)  # room for it
    on_ranks(ranks, moe_case, False, [3], 4, 2, "relu", torch.float64)


def wanted_case(tensor_parallel):
    """Each subset of gradients: the same bits as with all."""
    case = Case([5, 3], 8, 2, tensor_parallel=tensor_parallel)

    def gradients(wants):
        leaves = case.leaves(torch.float32)
        for leaf, want in zip(leaves, wants):
            leaf.requires_grad_(want)
        (case.call(*leaves) * case.mine(case.coefficients).float()).sum().backward()
        return [leaf.grad for leaf in leaves]

    each_subset_matches(gradients, 4)


@RANKS
@SPLITS
def test_gradients_that_are_not_wanted_are_not_made(ranks, tensor_parallel):
    on_ranks(ranks, wanted_case, tensor_parallel)


def layouts_case(tensor_parallel):
    """Transposed weights, rows with gaps, and more dimensions of x."""
    case = Case([6], 8, 2, tensor_parallel=tensor_parallel)
    x, up, down, weights = case.leaves(torch.float64)
    ids, expected = case.mine(case.ids), case.mine(case.outs)
    wide = torch.zeros(6, 2 * HIDDEN, dtype=torch.float64)
    wide[:, ::2] = x.detach()
    turned = [w.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for w in (up, down)]
    close(case.call(wide[:, ::2], *turned, weights), expected, "with gaps")
    folded = case.call(x.view(2, 3, HIDDEN), *turned, weights.view(2, 3, 2), ids.view(2, 3, 2))
    assert folded.shape == (2, 3, OUT)
    close(folded.flatten(0, 1), expected, "of three dimensions")
    (folded.flatten(0, 1) * case.mine(case.coefficients)).sum().backward()
    for leaf, gradient in zip((x, *turned, weights), case.gradients()):
        close(leaf.grad, gradient, "gradient")
        assert leaf.grad.stride() == leaf.stride()
    apart = [w.detach().repeat_interleave(2, -1)[..., ::2].requires_grad_() for w in (up, down)]
    (case.call(x, *apart, weights) * case.mine(case.coefficients)).sum().backward()
    for leaf, gradient in zip(apart, case.gradients()[1:]):
        close(leaf.grad, gradient, "gradient of weights with gaps")


@SPLITS
def test_layouts_and_dimensions(tensor_parallel):
    on_ranks(2, layouts_case, tensor_parallel)


def other_group_case():
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return
    ids = torch.tensor([[0, 3]])
    x, up, down = torch.ones(1, HIDDEN), torch.ones(2, INNER, HIDDEN), torch.ones(2, OUT, INNER)
    out = st.moe(x, up, down, ids, torch.tensor([[1.0, 2.0]]), group, activation=None)
    torch.testing.assert_close(out, torch.full((1, OUT), 3.0 * HIDDEN * INNER))


def test_a_group_of_some_ranks():
    on_ranks(3, other_group_case)


def bad_input_case():
    """Wrong arguments of the last rank alone raise on all ranks, which then go on."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    experts = 2 * ranks
    good = {
        "x": torch.randn(4, HIDDEN), "w_up": torch.randn(2, 2 * INNER, HIDDEN), "w_down": torch.randn(2, OUT, INNER),
        "topk_ids": torch.randint(experts, (4, 2)), "topk_weights": torch.rand(4, 2), "activation": "swiglu",
        "tensor_parallel": False,
    }  # fmt: skip

    def ids(value):
        changed = good["topk_ids"].clone()
        changed[3, 1] = value
        return changed

    wrong = [
        ("x is torch.int64", {"x": torch.ones(4, HIDDEN, dtype=torch.int64)}),
        ("x is torch.float8_e4m3fn", {"x": torch.ones(4, HIDDEN).to(torch.float8_e4m3fn)}),
        ("w_up.dtype = torch.float64", {"w_up": good["w_up"].double()}),
        (r"w_up.shape = \(2, 24, 9\)", {"w_up": torch.randn(2, 2 * INNER, HIDDEN + 1)}),
        (r"w_up.shape = \(24, 8\)", {"w_up": good["w_up"][0]}),
        (r"w_up.shape\[1\] = 23 must be even", {"w_up": good["w_up"][:, 1:]}),
        (r"w_down.shape = \(1, 10, 12\)", {"w_down": good["w_down"][:1]}),
        (r"w_down.shape = \(2, 10, 11\)", {"w_down": good["w_down"][..., 1:]}),
        ("topk_ids.dtype = torch.float32", {"topk_ids": good["topk_ids"].float()}),
        (r"topk_ids.shape = \(3, 2\)", {"topk_ids": good["topk_ids"][:3]}),
        (r"topk_ids.shape\[1\] = 0", {"topk_ids": good["topk_ids"][:, :0]}),
        (r"topk_weights.shape = \(4, 1\)", {"topk_weights": good["topk_weights"][:, :1]}),
        ("topk_weights.dtype = torch.bfloat16", {"topk_weights": good["topk_weights"].bfloat16()}),
        ("activation = 'tanh'", {"activation": "tanh"}),
        (rf"topk_ids has {experts} on rank {ranks - 1}; expected .* \[0, {experts}\)", {"topk_ids": ids(experts)}),
        (f"topk_ids has -1 on rank {ranks - 1}", {"topk_ids": ids(-1)}),
        ("topk_ids has 2147483647 or more", {"topk_ids": ids(1 << 40)}),
        ("w_up, w_down.* other sizes", {"w_down": torch.randn(2, OUT + 1, INNER)}),
        ("other sizes, dtype, activation", {"activation": None, "w_down": torch.randn(2, OUT, 2 * INNER)}),
        ("other .* tensor_parallel", {"tensor_parallel": True, "topk_ids": good["topk_ids"].clamp(max=1)}),
    ]  # fmt: skip

    def call(**changes):
        given = good | (changes if rank == ranks - 1 else {})
        options = {name: given[name] for name in list(good)[5:]}
        return st.moe(*(given[name] for name in list(good)[:5]), **options)

    for match, changes in wrong:
        if ranks == 1 and "other" in match:
            continue
        with pytest.raises(errors.InvalidArgument, match=match):
            call(**changes)
    assert call().shape == (4, OUT)
    for match, changes in (("activation = 3", {"activation": 3}), ("w_up = None", {"w_up": None})):
        with pytest.raises(errors.InvalidArgument, match=match):
            st.moe(**(good | changes))
    with pytest.raises(errors.InvalidArgument, match="capacity = 1.5"):
        st.moe(**good, capacity=1.5)
    for match, group in (("group = 'nose'", "nose"), ("group = 3", 3)):
        with pytest.raises(errors.InvalidArgument, match=match):
            st.moe(*(good[name] for name in list(good)[:5]), group)


@RANKS
def test_bad_input_raises_on_all_ranks(ranks):
    on_ranks(ranks, bad_input_case)


def bad_slices_case():
    """As many experts as a rank has weights of."""
    rank, x, weights = dist.get_rank(), torch.randn(3, HIDDEN), torch.rand(3, 2)
    up, down = torch.randn(4, 2 * INNER, HIDDEN), torch.randn(4, OUT, INNER)
    with pytest.raises(errors.InvalidArgument, match=r"topk_ids has 4 on rank 1; expected experts in \[0, 4\)"):
        st.moe(x, up, down, torch.full((3, 2), 3 + rank), weights, tensor_parallel=True)


def test_bad_input_of_slices():
    on_ranks(2, bad_slices_case)


def routing_case():
    """Layouts of random routings against a plain sort."""
    group = find_group(dist.group.WORLD.group_name)
    experts, topk, generator = 4 * group.size, 3, torch.Generator().manual_seed(5)
    tokens = [7, 0, 300, 2][: group.size]
    ids = [torch.randint(experts, (count, topk), generator=generator) for count in tokens]
    found = routing.exchange(ids[group.rank], experts, group, "", torch.device("cpu"))
    layout = routing.Layout(found, topk, experts, group, torch.device("cpu"))
    rows = [(int(ids[source][i, j]), source, j * tokens[source] + i)
            for source in range(group.size) for j in range(topk) for i in range(tokens[source])]  # fmt: skip
    own = sorted(row for row in rows if row[0] // 4 == group.rank)
    assert layout.most_tokens == max(tokens) and layout.tokens == tokens[group.rank]
    assert layout.received == len(own)
    assert layout.ends == [sum(row[0] % 4 <= expert for row in own) for expert in range(4)]
    leaving = sorted(row for row in rows if row[1] == group.rank)
    assert layout.leaving.tolist() == [row[2] for row in leaving]
    arrived = [row for source in range(group.size) for row in own if row[1] == source]
    assert [arrived[at] for at in layout.by_expert.tolist()] == own
    assert [own[at] for at in layout.by_source.tolist()] == arrived
    assert layout.table[group.rank] == [sum(row[0] // 4 == to for row in leaving) for to in range(group.size)]
    assert layout.returned == [list(column) for column in zip(*layout.table)]


@RANKS
def test_layout_of_a_routing(ranks):
    on_ranks(ranks, routing_case)


def slices_case():
    """Rows of sliced experts against a plain sort, which is the order of the rows that operators take and give."""
    group = find_group(dist.group.WORLD.group_name)
    topk, generator, tokens = 3, torch.Generator().manual_seed(5), [7, 0, 30, 2][: dist.get_world_size()]
    ids = [torch.randint(5, (count, topk), generator=generator) for count in tokens]
    found = routing.exchange(ids[group.rank], 5, group, "", torch.device("cpu"))
    layout = Slices(found, topk, 5, group, torch.device("cpu"))
    rows = sorted((int(ids[rank][i, j]), rank, j, i)
                  for rank in range(group.size) for j in range(topk) for i in range(tokens[rank]))  # fmt: skip
    assert layout.received == len(rows)
    assert layout.ends == [sum(row[0] <= expert for row in rows) for expert in range(5)]
    assert layout.choice_of.tolist() == [(rank * max(tokens) + i) * topk + j for _, rank, j, i in rows]
    for at, (_, rank, j, i) in enumerate(rows):
        assert layout.rows[rank * max(tokens) + i, j] == at


@RANKS
def test_rows_of_slices(ranks):
    on_ranks(ranks, slices_case)


@pytest.mark.parametrize("ends", [[3, 3, 10, 16], [0, 0, 16, 16], [5, 9, 12, 16]])
def test_products_by_grouped_mm(monkeypatch, ends):
    """The products that bf16 tensors on GPUs take: the same, also for experts without rows, in the same strides."""
    layout = types.SimpleNamespace(ends=ends, offsets=torch.tensor(ends, dtype=torch.int32))
    rows, grad, w = (torch.randn(sizes).bfloat16() for sizes in ((16, 24), (16, 8), (4, 8, 24)))
    grouped_mm, empty = torch._grouped_mm, [at for at, (a, b) in enumerate(zip([0, *ends], ends)) if a == b]

    def poisoned(a, b, offs):
        out = grouped_mm(a, b, offs=offs)
        if out.dim() == 3:
            out[empty] = torch.nan
        return out

    monkeypatch.setattr(torch, "_grouped_mm", poisoned)
    for weight in (w, w.transpose(1, 2).contiguous().transpose(1, 2)):
        found = []
        for grouped in (False, True):
            monkeypatch.setattr(kernels.sequential, "takes_grouped_mm", lambda *_, grouped=grouped: grouped)
            found.append((kernels.sequential.multiply(rows, weight, layout),
                          kernels.sequential.weight_gradient(grad, rows, weight, layout)))  # fmt: skip
        for got, expected in zip(*found):
            assert got.stride() == expected.stride()
            close(got, expected, "a product", 1e-2)
            assert expected.any()


def compile_case(backend, tensor_parallel):
    """Fullgraph, with tokens that differ between ranks and calls."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    experts = 2 if tensor_parallel else 2 * ranks
    sizes = (experts, HIDDEN), (2, 2 * INNER, HIDDEN), (2, HIDDEN, INNER)
    router, up, down = (torch.randn(size) / 2 for size in sizes)

    def layer(x, router, up, down):
        weights, ids = (x @ router.t()).softmax(-1).topk(2)
        return x + st.moe(x, up, down, ids, weights, tensor_parallel=tensor_parallel).square()

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    graphs = torch._dynamo.utils.counters["stats"]
    for tokens in (20, 7, 2, 100):  # 20: the size of nothing else
        x = torch.randn(tokens + rank, HIDDEN)
        leaves = [[of.clone().requires_grad_() for of in (x, router, up, down)] for _ in range(2)]
        outs = [function(*of) for function, of in zip((compiled, layer), leaves)]
        for out in outs:
            out.sum().backward()
        torch.testing.assert_close(*outs)
        for got, expected in zip(*leaves):
            torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-4)
        with torch.set_grad_enabled(backend == "inductor"):  # by the other one also a graph without gradients
            torch.testing.assert_close(compiled(*leaves[0]), outs[1])
        if tokens == 20:
            first = graphs["unique_graphs"]
    assert graphs["unique_graphs"] == first, "another number of tokens compiled another graph"


@SPLITS
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_fullgraph_with_any_tokens(backend, tensor_parallel):
    on_ranks(2, compile_case, backend, tensor_parallel)


def autocast_case(tensor_parallel):
    """Weights of choices stay fp32. Backward also within autocast."""
    case = Case([5, 3], 8, 2, tensor_parallel=tensor_parallel)
    leaves = case.leaves(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = case.call(*leaves)
        assert out.dtype == torch.bfloat16
        (out.float() * case.mine(case.coefficients)).sum().backward()
    close(out, case.mine(case.outs), "result")
    for leaf, expected in zip(leaves, case.gradients()):
        assert leaf.grad.dtype == torch.float32
        close(leaf.grad, expected, "gradient", 3e-2)


@SPLITS
def test_autocast(tensor_parallel):
    on_ranks(2, autocast_case, tensor_parallel)


def checkpoint_case(reentrant):
    from torch.utils.checkpoint import checkpoint

    case = Case([5, 3], 8, 2)
    ids, gradients = case.mine(case.ids), []

    def call(x, up, down, weights):
        return st.moe(x, up, down, ids, weights)

    for run in (call, lambda *of: checkpoint(call, *of, use_reentrant=reentrant)):
        leaves = case.leaves(torch.float32)
        run(*leaves).square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(reentrant):
    on_ranks(2, checkpoint_case, reentrant)
