"""An Inductor pass: GEMMs next to functional collectives become the ops.

    shingle.torch.inductor.enable()      # before torch.compile
    ...
    shingle.torch.inductor.enable().matches

| pattern | op |
|---|---|
| mm → all_reduce | gemm_all_reduce |
| mm → all_reduce → + residual → RMSNorm | gemm_all_reduce_norm |
| mm → reduce_scatter_tensor (dimension 0) | gemm_reduce_scatter |
| all_gather_into_tensor (dimension 0) → mm | all_gather_gemm |

A view may stand between GEMM and collective. Gathered rows may have several GEMMs, if all weights are known before the
first one, and other uses. Another value that something else uses too is left alone. The collectives of `C10D` are
found; shingle.torch.vllm has those of vLLM. gemm_all_reduce_norm rounds the normed rows once. The norm that it replaces
may have rounded before it multiplied by the weight.
"""

import operator
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .counters import counts, expect
from .groups import is_group

aten, prims = torch.ops.aten, torch.ops.prims
c10d, ours = torch.ops._c10d_functional, torch.ops.shingle
VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
SIZE = aten.sym_size.int
CONVERT = prims.convert_element_type.default


class Collective(NamedTuple):
    """An op that communicates: its tensor is argument 0, the number of ranks stands before the name of the group.

    rewrite: replaces a node of the op, and returns the name of the pattern, or None if it does not match. group: the
    position of the group's name. wanted: other arguments, (position, value). waited: the result is that of wait_tensor.
    """

    op: torch._ops.OpOverload
    rewrite: Callable[[torch.fx.Graph, torch.fx.Node, "Collective"], str | None]
    group: int
    wanted: tuple[int, object] | None = None
    waited: bool = False

    def is_served(self, node):
        """True if the ops can replace a node of the op, as far as its arguments tell."""
        if len(node.args) <= self.group or node.kwargs or not is_group(node.args[self.group]):
            return False
        return self.wanted is None or node.args[self.wanted[0]] == self.wanted[1]

    def result(self, node):
        """The node that has the result, or None."""
        if not self.waited:
            return node
        user = only_user(node)
        return user if user is not None and user.target is c10d.wait_tensor.default else None


class OverlapPass(CustomGraphPass):
    """Rewrites the patterns of this file. `matches` counts them, of all graphs."""

    source = "inductor"  # of the counters

    def __init__(self):
        self.matches = Counter()

    def uuid(self):
        """Identifies the pass in Inductor's cache."""
        return get_hash_for_files((__file__,))

    def collectives(self):
        """The table of collectives that are searched, in this order."""
        return C10D

    def is_served(self, node, collective):
        return collective.is_served(node)

    def rewrite_norm(self, graph, reduced):
        return rewrite_norm(graph, reduced)

    def count(self, name):
        self.matches[name] += 1
        counts[f"{self.source}.{name}"] += 1

    def __call__(self, graph):
        for collective in self.collectives():
            for node in graph.find_nodes(op="call_function", target=collective.op):
                if self.is_served(node, collective) and (name := collective.rewrite(graph, node, collective)):
                    self.count(name)
        for node in graph.find_nodes(op="call_function", target=ours.gemm_all_reduce.default):
            if name := self.rewrite_norm(graph, node):
                self.count(name)
        graph.eliminate_dead_code()


_enabled = OverlapPass()


def enable() -> OverlapPass:
    """Makes the pass Inductor's post_grad_custom_post_pass, and returns it. Warns at exit if nothing matched."""
    expect("inductor.", "inductor.enable()", "Graphs need GEMMs next to functional collectives, and torch.compile.")
    config.post_grad_custom_post_pass = _enabled
    return _enabled


def insert(graph, before, target, *args):
    """A new node before another, with the fake value that later passes read."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args)
    values = torch.fx.node.map_arg(args, lambda arg: arg.meta["val"])
    fake = torch._guards.detect_fake_mode([arg.meta.get("val") for arg in node.all_input_nodes])
    with fake:
        node.meta["val"] = target(*values)
    return node


def users(node):
    """Nodes that use the content of a node, not only its sizes."""
    return [user for user in node.users if user.target is not SIZE]


def only_user(node):
    found = users(node)
    return found[0] if len(found) == 1 else None


def rows(graph, before, x, view):
    """x as a matrix of rows. view: the node that reshapes it, or one of its shape, if it has more dimensions."""
    if x.meta["val"].dim() == 2:
        return x
    return insert(graph, before, aten.reshape.default, x, [-1, view.args[1][-1]])


def transposed(b):
    """w of b = wᵀ, or None."""
    return b.args[0] if b.target in (aten.permute.default, aten.t.default) else None


def weight(graph, before, b):
    """w [n, k] of a second operand b = wᵀ [k, n]."""
    return transposed(b) or insert(graph, before, aten.permute.default, b, [1, 0])


def product_before(collective):
    """The mm whose result alone a collective takes, and the view between them or None."""
    source, view = collective.args[0], None
    if source.target in VIEWS and only_user(source) is collective:
        source, view = source.args[0], source
    ends = source.target is aten.mm.default and only_user(source) is (view or collective)
    return (source, view) if ends else (None, None)


def replace(node, result, made):
    """Replaces a collective and the node of its result. Dead-code elimination would keep a wait."""
    result.replace_all_uses_with(made)
    if result is not node:
        result.graph.erase_node(result)
        node.replace_all_uses_with(made)


def move_sizes(graph, mm, view):
    """Sizes of a product that goes away come from its operands. False if they cannot."""
    if view is not None and len(view.users) > 1:
        return False
    for user in [user for user in mm.users if user.target is SIZE]:
        operand = mm.args[user.args[1]]
        user.replace_all_uses_with(insert(graph, user, SIZE, operand, user.args[1]))
        graph.erase_node(user)
    return True


def rewrite_all_reduce(graph, node, collective):
    (mm, view), result = product_before(node), collective.result(node)
    if mm is None or result is None or not move_sizes(graph, mm, view):
        return None
    at, (x, b) = view or mm, mm.args
    made = insert(graph, at, ours.gemm_all_reduce.default, x, weight(graph, at, b), node.args[collective.group])
    if view is not None:
        made = insert(graph, at, aten.reshape.default, made, view.args[1])
    replace(node, result, made)
    return "mm_all_reduce"


def keeps_rows(mm, view):
    """True if equal parts of a view's first dimension are equal parts of the product's rows."""
    if view is None:
        return True
    seen = view.meta["val"].shape
    return len(seen) > 1 and statically_known_true(seen[-1] == mm.meta["val"].shape[1])


def rewrite_reduce_scatter(graph, node, collective):
    (mm, view), result = product_before(node), collective.result(node)
    if mm is None or result is None or not keeps_rows(mm, view) or not move_sizes(graph, mm, view):
        return None
    at, (x, b) = view or mm, mm.args
    made = insert(graph, at, ours.gemm_reduce_scatter.default, x, weight(graph, at, b), node.args[collective.group])
    if view is not None:
        made = insert(graph, at, aten.reshape.default, made, [-1, *view.args[1][1:]])
    replace(node, result, made)
    return "mm_reduce_scatter"


def rewrite_all_gather(graph, node, collective):
    """One op for all products of the gathered rows. Other uses read the rows that it returns."""
    x, ranks, group = node.args[0], node.args[collective.group - 1], node.args[collective.group]
    result = collective.result(node)
    if result is None:
        return None
    matrices = [result] if result.meta["val"].dim() == 2 else views_of_rows(result)
    readers = sorted((user for matrix in matrices for user in users(matrix)), key=list(graph.nodes).index)
    mms = [user for user in readers if user.target is aten.mm.default and user.args[1] not in matrices]
    if not mms or not all(comes_before(graph, transposed(mm.args[1]) or mm.args[1], readers[0]) for mm in mms):
        return None
    for sized in dict.fromkeys((node, result)):
        for user in [user for user in sized.users if user.target is SIZE]:
            size = insert(graph, user, SIZE, x, user.args[1])
            if user.args[1] == 0:
                size = insert(graph, user, operator.mul, size, ranks)
            user.replace_all_uses_with(size)
            graph.erase_node(user)
    at, others = readers[0], len(mms) < len(readers)
    ws = [weight(graph, at, mm.args[1]) for mm in mms]
    made = insert(graph, at, ours.all_gather_gemm.default, rows(graph, at, x, matrices[0]), ws, group, None, others)
    outs = insert(graph, at, operator.getitem, made, 1)
    products = [insert(graph, at, operator.getitem, outs, i) for i in range(len(mms))]
    rest = insert(graph, at, operator.getitem, made, 0) if others else None
    for mm, product in zip(mms, products):
        mm.replace_all_uses_with(product)
        graph.erase_node(mm)
    for matrix in matrices if others else ():
        matrix.replace_all_uses_with(rest)
    for old in dict.fromkeys((*matrices, result)):  # dead-code elimination would keep a wait
        graph.erase_node(old)
    return "all_gather_mm"


def views_of_rows(result):
    """The views of a node as a matrix of rows, if it has no other use."""
    value = result.meta["val"]
    found = [user for user in users(result) if user.target in VIEWS and user.meta["val"].dim() == 2
             and user.meta["val"].shape[-1] == value.shape[-1] and len(users(user)) == len(user.users)]  # fmt: skip
    return found if len(found) == len(users(result)) else []


def comes_before(graph, node, other):
    order = list(graph.nodes)
    return order.index(node) < order.index(other)


C10D = (
    Collective(c10d.all_gather_into_tensor.default, rewrite_all_gather, group=2, waited=True),
    Collective(c10d.all_reduce.default, rewrite_all_reduce, group=2, wanted=(1, "sum"), waited=True),
    Collective(c10d.reduce_scatter_tensor.default, rewrite_reduce_scatter, group=3, wanted=(1, "sum"), waited=True),
)


def rewrite_norm(graph, reduced):
    """all_reduce + residual → RMSNorm. The sum stays available."""
    result = only_user(reduced)
    view = result if result is not None and result.target in VIEWS else None
    total = only_user(view) if view is not None else result
    if total is None or total.target is not aten.add.Tensor or total.kwargs or len(reduced.args) > 3:
        return None
    residual = total.args[1] if total.args[0] is (view or reduced) else total.args[0]
    found = find_norm(total)
    if found is None or not isinstance(residual, torch.fx.Node) or not same_kind(residual, view or reduced):
        return None
    normed, norm_weight, eps = found
    x, w, group = reduced.args
    args = (x, w, rows(graph, total, residual, view), norm_weight, group, None, eps)
    made = insert(graph, total, ours.gemm_all_reduce_norm.default, *args)
    for number, old in enumerate((normed, total)):
        new = insert(graph, total, operator.getitem, made, number)
        if view is not None:
            new = insert(graph, total, aten.reshape.default, new, view.args[1])
        old.replace_all_uses_with(new)
    return "mm_all_reduce_norm"


def same_kind(node, other):
    a, b = node.meta["val"], other.meta["val"]
    return a.dtype == b.dtype and a.dim() == b.dim() and all(map(operator.eq, a.shape, b.shape))


def user_of(node, *targets):
    """The user of a node with one of these targets, if there is exactly one."""
    found = [user for user in node.users if user.target in targets]
    return found[0] if len(found) == 1 else None


def find_norm(x):
    """The RMSNorm of x's last dimension: (normed, weight [n], eps), or None."""
    dtype, dims = x.meta["val"].dtype, x.meta["val"].dim()
    wide = x if dtype == torch.float32 else user_of(x, CONVERT)
    square = wide and user_of(wide, aten.pow.Tensor_Scalar)
    mean = square and square.args[1] == 2 and user_of(square, aten.mean.dim)
    if not mean or [dim % dims for dim in mean.args[1]] != [dims - 1] or mean.args[2:3] != (True,):
        return None
    shifted = user_of(mean, aten.add.Tensor, aten.add.Scalar)
    scale = shifted and user_of(shifted, aten.rsqrt.default)
    unit = scale and user_of(scale, aten.mul.Tensor)
    if not unit or set(unit.args) != {wide, scale} or not isinstance(shifted.args[1], float):
        return None
    narrow = user_of(unit, CONVERT) or unit  # Llama's norm rounds before it multiplies by the weight
    normed = user_of(narrow, aten.mul.Tensor)
    if normed is None:
        return None
    norm_weight = normed.args[1] if normed.args[0] is narrow else normed.args[0]
    if normed.meta["val"].dtype != dtype:
        normed = user_of(normed, CONVERT)
    if normed is None or normed.meta["val"].dtype != dtype or not isinstance(norm_weight, torch.fx.Node):
        return None
    value = norm_weight.meta["val"]
    fits = value.dtype == dtype and value.dim() == 1 and norm_weight.op == "placeholder"
    return (normed, norm_weight, shifted.args[1]) if fits else None
