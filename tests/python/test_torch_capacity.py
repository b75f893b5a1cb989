"""moe with a capacity on CPU against experts on one rank in float64 that drop choices one by one, with gradients."""

import copy
import functools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
import test_torch_experts  # noqa: E402
from comparisons import each_subset_matches  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402
from shingle.torch.experts.slots import SlicedSlots, Slots  # noqa: E402
from shingle.torch.groups import Group, find_group  # noqa: E402
from test_torch_experts import HIDDEN, INNER, OUT, RANKS, SPLITS, TOLERANCE, all_to_the_last, close  # noqa: E402


def assigned(ids, experts, capacity):
    """The slot of each choice, -1 without one, and what is dropped: plain loops in the order of choices."""
    slot_of, taken, dropped = torch.full_like(ids, -1), [0] * experts, [0, 0]
    for choice in range(ids.shape[1]):
        for token in range(ids.shape[0]):
            expert = int(ids[token, choice])
            if not 0 <= expert < experts:
                dropped[1] += expert != -1
            elif taken[expert] == capacity:
                dropped[0] += 1
            else:
                slot_of[token, choice] = expert * capacity + taken[expert]
                taken[expert] += 1
    return slot_of, dropped


LAYOUTS = {"whole experts": {}, "slices": {"tensor_parallel": True}}
LAYOUTS["replicated"] = LAYOUTS["slices"] | {"replicated": True}
EACH_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


class Case(test_torch_experts.Case):
    """The case of test_torch_experts with a capacity. Some ids are no experts."""

    def __init__(self, tokens, experts, topk, capacity, activation="swiglu", choose=None, **options):
        ranks = 1 if options.get("replicated") else dist.get_world_size()
        self.capacity, self.most, self.dropped = capacity, max(tokens[:ranks]), []

        def some_are_none(count, topk):
            return torch.randint(-2, experts + 1, (count, topk))

        super().__init__(tokens, experts, topk, activation, choose or some_are_none, **options)

    def dense(self, x, ids, weights):
        slot_of, dropped = assigned(ids, self.up.shape[0], self.capacity)
        self.dropped.append(dropped)
        kept = slot_of >= 0
        return super().dense(x, torch.where(kept, ids, 0), torch.where(kept, weights, 0.0))

    def call(self, x, up, down, weights, **options):
        options = {"capacity": self.capacity, "max_tokens": self.most, "activation": self.activation,
                   "tensor_parallel": self.tensor_parallel, "replicated": self.replicated} | options  # fmt: skip
        return st.moe(x, up, down, self.mine(self.ids), weights, **options)


def capacity_case(layout, tokens, experts, topk, capacity, dtype, activation="swiglu", choose=None):
    case = Case(tokens, experts, topk, capacity, activation, choose, **LAYOUTS[layout])
    leaves = case.leaves(dtype)
    out, dropped = case.call(*leaves)
    assert out.dtype == dtype and dropped.dtype == torch.int32
    assert dropped.tolist() == case.mine(case.dropped)
    close(out, case.mine(case.outs), "result")
    (out * case.mine(case.coefficients).to(dtype)).sum().backward()
    for name, leaf, expected in zip(("x", "w_up", "w_down", "topk_weights"), leaves, case.gradients()):
        close(leaf.grad, expected, f"gradient of {name}", TOLERANCE[dtype])
        assert leaf.grad.dtype == leaf.dtype and leaf.grad.stride() == leaf.stride()


def none_at_all(count, topk):
    return torch.full((count, topk), -1)


@RANKS
@EACH_LAYOUT
@pytest.mark.parametrize("capacity", [1, 2, 3, 100])
def test_capacities(ranks, layout, capacity):
    on_ranks(ranks, capacity_case, layout, [9, 7], 8, 2, capacity, torch.float64)


@RANKS
@EACH_LAYOUT
def test_other_dtypes_and_activations(ranks, layout):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        on_ranks(ranks, capacity_case, layout, [40, 30], 8, 2, 6, dtype)
    for activation in ("gelu", "silu", "relu", None):
        on_ranks(ranks, capacity_case, layout, [9, 7], 8, 2, 2, torch.float64, activation)


@RANKS
@EACH_LAYOUT
def test_extreme_routings(ranks, layout):
    on_ranks(ranks, capacity_case, layout, [5, 0, 2], 8, 4, 3, torch.float64, "swiglu", all_to_the_last)
    on_ranks(ranks, capacity_case, layout, [5, 0, 2], 8, 4, 3, torch.float64, "swiglu", none_at_all)
    on_ranks(ranks, capacity_case, layout, [0, 5], 4, 1, 2, torch.float64)
    on_ranks(ranks, capacity_case, layout, [0], 4, 2, 2, torch.float64)  # no tokens at all


def test_slices_of_experts_whose_number_the_ranks_do_not_divide():
    for layout in ("slices", "replicated"):
        on_ranks(2, capacity_case, layout, [4, 3], 5, 2, 2, torch.float64)


def slots_case():
    """Slots against plain loops: the same choices are dropped, in the same order."""
    group = find_group(dist.group.WORLD.group_name)
    for tokens, topk, experts, capacity in ((17, 2, 8, 3), (1, 4, 8, 1), (30, 3, 4, 30), (0, 2, 4, 2)):
        for dtype in (torch.int32, torch.int64):
            ids = torch.randint(-3, experts + 3, (tokens, topk), dtype=dtype)
            if dtype == torch.int64 and tokens > 0:
                ids[0, 0] = 1 << 40
            slots = Slots(ids, experts, group, capacity, max(tokens, 1))
            expected, dropped = assigned(ids, experts, slots.capacity)
            assert slots.by_choice.view(topk, tokens).t().tolist() == expected.tolist()
            assert slots.dropped.tolist() == dropped
            choices = {int(slot): at for at, slot in enumerate(expected.t().reshape(-1)) if slot >= 0}
            assert slots.leaving.tolist() == [choices.get(slot, -1) for slot in range(experts * slots.capacity)]
            assert slots.leaving_tokens.tolist() == [at % tokens if at >= 0 else -1 for at in slots.leaving.tolist()]
            assert slots.matrices("moe")[0].tolist() == ids.clamp(-2, experts).tolist()


@RANKS
def test_slots_are_given_in_the_order_of_choices(ranks):
    on_ranks(ranks, slots_case)


def sliced_slots_case():
    """Every rank knows the choice in each slot of all ranks, by expert, and the row of each choice."""
    group = find_group(dist.group.WORLD.group_name)
    ranks, most, topk, experts = group.size, 6, 2, 5
    ids = [torch.randint(-1, experts, (most - rank, topk)) for rank in range(ranks)]  # equal on all ranks
    slots = SlicedSlots(ids[group.rank], experts, group, 3, most)
    rows = torch.full((ranks, most, topk), -1)
    for rank, of_rank in enumerate(ids):
        slot, _ = assigned(of_rank, experts, 3)
        by_expert = (slot // 3 * ranks + rank) * 3 + slot % 3
        rows[rank, : most - rank] = torch.where(slot < 0, -1, by_expert)
    assert slots.rows.tolist() == rows.view(-1, topk).tolist()
    numbers = {row: number for number, row in enumerate(rows.flatten().tolist()) if row >= 0}
    assert slots.choice_of.tolist() == [numbers.get(row, -1) for row in range(slots.received)]


@RANKS
def test_ranks_know_the_slots_of_all(ranks):
    on_ranks(ranks, sliced_slots_case)


def test_nothing_of_a_routing_goes_to_the_host():
    """On fake tensors whatever reads a value, or has a size that depends on one, raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(6, 2, dtype=torch.int64))
        slots = Slots(fake, 8, Group("0", None, 0, 2), 3, 6)
        for name in ("by_choice", "leaving", "leaving_tokens", "dropped", "by_expert", "by_source", "offsets"):
            assert getattr(slots, name).device == fake.device
        slots.kept(torch.ones(6, 2)), slots.pick(torch.ones(12, 4), slots.leaving), slots.matrices("moe")
        with pytest.raises(Exception, match="local_scalar_dense|data-dependent"):
            slots.dropped.tolist()


def invariance_case(tensor_parallel):
    """A large capacity gives the results of a call without one. What dropped choices hold does not matter."""
    rank, experts = dist.get_rank(), 2 * dist.get_world_size()
    moe = functools.partial(st.moe, tensor_parallel=tensor_parallel)
    held = experts if tensor_parallel else 2
    x, up, down = torch.randn(6, HIDDEN), torch.randn(held, 2 * INNER, HIDDEN), torch.randn(held, OUT, INNER)
    ids, weights = torch.randint(experts, (6, 2)), torch.rand(6, 2)
    out, dropped = moe(x, up, down, ids, weights, capacity=12)
    torch.testing.assert_close(out, moe(x, up, down, ids, weights), rtol=1e-5, atol=1e-5)
    assert dropped.tolist() == [0, 0]
    ids[rank % 6, 1] = -1
    expected, _ = moe(x, up, down, ids, weights, capacity=12)
    weights[rank % 6, 1] = torch.nan
    out, _ = moe(x, up, down, ids, weights, capacity=12)
    assert torch.equal(out, expected)
    folded, _ = moe(x.view(2, 3, HIDDEN), up, down, ids.view(2, 3, 2), weights.view(2, 3, 2), capacity=12)
    assert torch.equal(folded, out.view(2, 3, OUT))
    turned = [w.transpose(1, 2).contiguous().transpose(1, 2) for w in (up, down)]
    torch.testing.assert_close(moe(x, *turned, ids, weights, capacity=12)[0], out, rtol=1e-5, atol=1e-5)


@RANKS
@SPLITS
def test_a_capacity_for_all_is_no_capacity(ranks, tensor_parallel):
    on_ranks(ranks, invariance_case, tensor_parallel)


def wanted_case(tensor_parallel):
    """Each subset of gradients: the same bits as with all."""
    case = Case([5, 3], 8, 2, 2, tensor_parallel=tensor_parallel)

    def gradients(wants):
        leaves = case.leaves(torch.float32)
        for leaf, want in zip(leaves, wants):
            leaf.requires_grad_(want)
        (case.call(*leaves)[0] * case.mine(case.coefficients).float()).sum().backward()
        return [leaf.grad for leaf in leaves]

    each_subset_matches(gradients, 4)


@SPLITS
def test_gradients_that_are_not_wanted_are_not_made(tensor_parallel):
    on_ranks(2, wanted_case, tensor_parallel)


def bad_input_case():
    good = torch.randn(4, HIDDEN), torch.randn(2, 2 * INNER, HIDDEN), torch.randn(2, OUT, INNER)
    ids, weights = torch.zeros(4, 2, dtype=torch.int64), torch.rand(4, 2)
    for match, options in (
        (r"capacity = 0 is outside \[1, 536870911\]", {"capacity": 0}),
        ("capacity = -3 is outside", {"capacity": -3}),
        ("capacity = 1073741824 is outside", {"capacity": 1 << 30}),
        ("max_tokens = 3, but x has 4 tokens", {"capacity": 2, "max_tokens": 3}),
        ("max_tokens = 4 needs a capacity", {"max_tokens": 4}),
        ("activation = 'tanh'", {"capacity": 2, "activation": "tanh"}),
        ("replicated = True needs tensor_parallel", {"capacity": 2, "replicated": True}),
        ("replicated = True needs .* and a capacity", {"tensor_parallel": True, "replicated": True}),
    ):
        with pytest.raises(errors.InvalidArgument, match=match):
            st.moe(*good, ids, weights, **options)
    with pytest.raises(errors.InvalidArgument, match=r"topk_ids.shape = \(3, 2\)"):
        st.moe(*good, ids[:3], weights, capacity=2)
    with pytest.raises(errors.InvalidArgument, match="topk_weights.dtype = torch.float64"):
        st.moe(*good, ids, weights.double(), capacity=2)
    out, dropped = st.moe(*good, ids, weights, capacity=2)  # the ranks still agree
    assert out.shape == (4, OUT) and dropped.tolist() == [6, 0]


def test_bad_input_names_the_argument():
    on_ranks(2, bad_input_case)


def compile_case(backend, tensor_parallel):
    """Fullgraph, with tokens that differ between ranks and calls."""
    from shingle.torch.nn import MoE

    rank, ranks = dist.get_rank(), dist.get_world_size()
    made = MoE(HIDDEN, INNER, 2 * ranks, 2, tensor_parallel=tensor_parallel, capacity=6, max_tokens=101)

    def layer(x):
        return x + made(x).square()

    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    graphs, counted = torch._dynamo.utils.counters["stats"], []
    for tokens in (20, 7, 100):  # 20: the size of nothing else
        found = []
        for function in (compiled, layer):
            x = torch.randn(tokens + rank, HIDDEN, generator=torch.Generator().manual_seed(tokens)).requires_grad_()
            made.zero_grad()
            made.experts.dropped.zero_()
            out = function(x)
            out.sum().backward()
            found.append([out.detach(), x.grad, *(parameter.grad for parameter in made.parameters())])
            counted.append(made.experts.dropped.tolist())
        for got, expected in zip(*found):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert counted[-1] == counted[-2]
        if tokens == 20:
            first = graphs["unique_graphs"]
    assert counted[-1][0] > 0
    assert graphs["unique_graphs"] == first, "another number of tokens compiled another graph"


@SPLITS
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_fullgraph_with_any_tokens(backend, tensor_parallel):
    on_ranks(2, compile_case, backend, tensor_parallel)


def module_case(tensor_parallel):
    """Modules count what their calls drop, outside of buffers and checkpoints; without a capacity they count nothing."""
    from shingle.torch.nn import Experts, MoE

    case = Case([5], 8, 2, 2, out=HIDDEN, tensor_parallel=tensor_parallel)
    x, up, down, weights = case.leaves(torch.float64)
    made = Experts.from_weights(case.up, case.down, tensor_parallel=tensor_parallel, capacity=2)
    for calls in (1, 2):
        close(made(x, case.mine(case.ids), weights), case.mine(case.outs), "a module")
        assert made.dropped.tolist() == [calls * of for of in case.mine(case.dropped)]
    assert "dropped" not in made.state_dict() and not list(made.buffers())
    made.reset_parameters()
    assert made.dropped.tolist() == [0, 0]
    plain = MoE(HIDDEN, INNER, 8, 2)
    assert not hasattr(plain.experts, "dropped") and not list(plain.buffers())


@SPLITS
def test_modules_count_what_they_drop(tensor_parallel):
    on_ranks(2, module_case, tensor_parallel)


def following_case():
    """Counts go where the calls are, as integers, and a copy counts for itself."""
    from shingle.torch.nn import MoE

    made = MoE(HIDDEN, INNER, 4, 2, capacity=1, device="meta")
    assert made.experts.dropped.is_meta
    made.to_empty(device="cpu").bfloat16()
    made.router.reset_parameters()
    made.experts.reset_parameters()
    x = torch.ones(3, HIDDEN, dtype=torch.bfloat16)
    other = copy.deepcopy(made)
    made(x)
    made(x)
    assert made.experts.dropped.tolist() == [8, 0] and made.experts.dropped.dtype == torch.int64
    other(x)
    assert other.experts.dropped.tolist() == [4, 0]


def test_counts_follow_the_calls():
    on_ranks(2, following_case)


def data_parallel_case():
    """DistributedDataParallel broadcasts buffers from rank 0 before each forward. Each rank keeps its own counts."""
    from shingle.torch.nn import MoE

    rank, tokens = dist.get_rank(), (3, 7)
    made = MoE(HIDDEN, INNER, 4, 2, capacity=1, max_tokens=max(tokens))
    made._ddp_params_and_buffers_to_ignore = ["experts.up", "experts.down"]
    wrapped = torch.nn.parallel.DistributedDataParallel(made)
    for calls in (1, 2, 3):
        wrapped(torch.ones(tokens[rank], HIDDEN)).sum().backward()  # all tokens choose the same two experts
        assert made.experts.dropped.tolist() == [calls * 2 * (tokens[rank] - 1), 0]


def test_counts_under_data_parallel():
    on_ranks(2, data_parallel_case)


def autocast_and_checkpoint_case():
    from torch.utils.checkpoint import checkpoint

    case = Case([5, 3], 8, 2, 2)
    leaves = case.leaves(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, dropped = case.call(*leaves)
        assert out.dtype == torch.bfloat16
    close(out, case.mine(case.outs), "result")
    (out.float() * case.mine(case.coefficients)).sum().backward()
    for leaf, expected in zip(leaves, case.gradients()):
        close(leaf.grad, expected, "gradient", 3e-2)
    gradients = []
    for run in (case.call, lambda *of: checkpoint(case.call, *of, use_reentrant=False)):
        leaves = case.leaves(torch.float32)
        run(*leaves)[0].square().sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert all(map(torch.equal, *gradients))


def test_autocast_and_checkpointing():
    on_ranks(2, autocast_and_checkpoint_case)
