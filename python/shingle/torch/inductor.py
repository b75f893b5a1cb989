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

A view may stand between GEMM and collective. A value that something else uses too is left alone, also gathered rows of
several GEMMs, which all_gather_gemm does not overlap. gemm_all_reduce_norm rounds the normed rows once. The norm that
it replaces may have rounded before it multiplied by the weight.
"""

import operator
from collections import Counter

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx.experimental.symbolic_shapes import statically_known_true

from .counters import counts, expect

aten, prims = torch.ops.aten, torch.ops.prims
c10d, ours = torch.ops._c10d_functional, torch.ops.shingle
VIEWS = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
SIZE = aten.sym_size.int
CONVERT = prims.convert_element_type.default


class OverlapPass(CustomGraphPass):
    """Rewrites the patterns of this file. `matches` counts them, of all graphs."""

    def __init__(self):
        self.matches = Counter()

    def uuid(self):
        """Identifies the pass in Inductor's cache."""
        return get_hash_for_files((__file__,))

    def __call__(self, graph):
        for target, rewrite in (
            (c10d.all_gather_into_tensor.default, rewrite_all_gather),
            (c10d.all_reduce.default, rewrite_all_reduce),
            (c10d.reduce_scatter_tensor.default, rewrite_reduce_scatter),
            (ours.gemm_all_reduce.default, rewrite_norm),
        ):
            for node in graph.find_nodes(op="call_function", target=target):
                if name := rewrite(graph, node):
                    self.matches[name] += 1
                    counts[f"inductor.{name}"] += 1
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


def weight(graph, before, b):
    """w [n, k] of a second operand b = wᵀ [k, n]."""
    if b.target is aten.permute.default or b.target is aten.t.default:
        return b.args[0]
    return insert(graph, before, aten.permute.default, b, [1, 0])


def product_before(collective):
    """The mm whose result alone a collective takes, and the view between them or None."""
    source, view = collective.args[0], None
    if source.target in VIEWS and only_user(source) is collective:
        source, view = source.args[0], source
    ends = source.target is aten.mm.default and only_user(source) is (view or collective)
    return (source, view) if ends else (None, None)


def replace(collective, made):
    """Replaces a collective, and its wait, which dead-code elimination would keep."""
    wait = only_user(collective)
    wait.replace_all_uses_with(made)
    wait.graph.erase_node(wait)
    collective.replace_all_uses_with(made)


def move_sizes(graph, mm, view):
    """Sizes of a product that goes away come from its operands. False if they cannot."""
    if view is not None and len(view.users) > 1:
        return False
    for user in [user for user in mm.users if user.target is SIZE]:
        operand = mm.args[user.args[1]]
        user.replace_all_uses_with(insert(graph, user, SIZE, operand, user.args[1]))
        graph.erase_node(user)
    return True


def is_waited(collective):
    user = only_user(collective)
    return user is not None and user.target is c10d.wait_tensor.default


def rewrite_all_reduce(graph, collective):
    mm, view = product_before(collective)
    if mm is None or collective.args[1] != "sum" or not is_waited(collective) or not move_sizes(graph, mm, view):
        return None
    at, (x, b) = view or mm, mm.args
    made = insert(graph, at, ours.gemm_all_reduce.default, x, weight(graph, at, b), collective.args[2])
    if view is not None:
        made = insert(graph, at, aten.reshape.default, made, view.args[1])
    replace(collective, made)
    return "mm_all_reduce"


def keeps_rows(mm, view):
    """True if equal parts of a view's first dimension are equal parts of the product's rows."""
    if view is None:
        return True
    seen = view.meta["val"].shape
    return len(seen) > 1 and statically_known_true(seen[-1] == mm.meta["val"].shape[1])


def rewrite_reduce_scatter(graph, collective):
    mm, view = product_before(collective)
    if mm is None or collective.args[1] != "sum" or not is_waited(collective):
        return None
    if not keeps_rows(mm, view) or not move_sizes(graph, mm, view):
        return None
    at, (x, b) = view or mm, mm.args
    made = insert(graph, at, ours.gemm_reduce_scatter.default, x, weight(graph, at, b), collective.args[3])
    if view is not None:
        made = insert(graph, at, aten.reshape.default, made, [-1, *view.args[1][1:]])
    replace(collective, made)
    return "mm_reduce_scatter"


def rewrite_all_gather(graph, collective):
    if not is_waited(collective):
        return None
    x, ranks, group = collective.args
    wait = only_user(collective)
    gathered, mm = wait, only_user(wait)
    if mm is not None and mm.target in VIEWS:
        gathered, mm = mm, only_user(mm)
        value = gathered.meta["val"]
        if len(gathered.users) > 1 or value.dim() != 2 or value.shape[-1] != x.meta["val"].shape[-1]:
            return None
    if mm is None or mm.target is not aten.mm.default or mm.args[0] is not gathered:
        return None
    for node in (collective, wait):
        for user in [user for user in node.users if user.target is SIZE]:
            size = insert(graph, user, SIZE, x, user.args[1])
            if user.args[1] == 0:
                size = insert(graph, user, operator.mul, size, ranks)
            user.replace_all_uses_with(size)
            graph.erase_node(user)
    ws = [weight(graph, mm, mm.args[1])]
    made = insert(graph, mm, ours.all_gather_gemm.default, rows(graph, mm, x, gathered), ws, group)
    out = insert(graph, mm, operator.getitem, insert(graph, mm, operator.getitem, made, 1), 0)
    mm.replace_all_uses_with(out)
    for node in dict.fromkeys((mm, gathered, wait)):  # dead-code elimination would keep the wait
        graph.erase_node(node)
    return "all_gather_mm"


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
