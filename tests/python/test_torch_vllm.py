"""The pass on vLLM's collectives in real compilations on CPU, and the plugin, with a stand-in for vLLM."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import serving_stubs  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from ranks import Ranks  # noqa: E402

K, N, ROWS = 8, 6, 4
GROUP = "tp:0"


@pytest.fixture(scope="module")
def ranks():
    """Runs functions on two ranks of their own: other tests see no vLLM."""
    made = []

    def run(*work):
        if not made or not made[-1].processes:
            made.append(Ranks(2))
        return made[-1].run(*work)

    yield run
    made[-1].stop()


def reduce(x, w):
    return torch.ops.vllm.all_reduce(F.linear(x, w), group_name=GROUP)


def scatter(x, w):
    return torch.ops.vllm.reduce_scatter(F.linear(x, w), 0, 2, group_name=GROUP)


def gather(x, w):
    return F.linear(torch.ops.vllm.all_gather(x, 0, 2, group_name=GROUP), w).relu()


def sizes(x, w):
    y = reduce(x, w)
    return y * y.shape[0]


def norm(x, w, residual, scale):
    return torch.ops.vllm_ir.fused_add_rms_norm(reduce(x, w), residual, scale, 1e-5, None)


def partial_norm(x, w, residual, scale):
    return torch.ops.vllm_ir.fused_add_rms_norm(reduce(x, w), residual, scale, 1e-5, 4)


def decomposed_norm(x, w, residual, scale):
    total = reduce(x, w) + residual
    return F.rms_norm(total, (N,), scale, 1e-5), total


def scatter_columns(x, w):
    return torch.ops.vllm.reduce_scatter(F.linear(x, w), 1, 2, group_name=GROUP)


def used_twice(x, w):
    product = F.linear(x, w)
    return torch.ops.vllm.all_reduce(product, GROUP), product + 1


def unknown_group(x, w):
    return torch.ops.vllm.all_reduce(F.linear(x, w), "tp:7")


def addmm(x, w, residual, bias):
    return torch.ops.vllm.all_reduce(F.linear(x, w, bias), GROUP)


CASES = {
    "reduce": (reduce, {"mm_all_reduce": 1}),
    "scatter": (scatter, {"mm_reduce_scatter": 1}),
    "gather": (gather, {"all_gather_mm": 1}),
    "sizes": (sizes, {"mm_all_reduce": 1}),
    "norm": (norm, {"mm_all_reduce": 1, "mm_all_reduce_norm": 1}),
    "decomposed_norm": (decomposed_norm, {"mm_all_reduce": 1, "mm_all_reduce_norm": 1}),
    "partial_norm": (partial_norm, {"mm_all_reduce": 1}),
    "scatter_columns": (scatter_columns, {}),
    "used_twice": (used_twice, {}),
    "unknown_group": (unknown_group, {}),
    "addmm": (addmm, {}),
}


def group(name, process_group=None):
    whole = dist.group.WORLD
    return serving_stubs.GroupCoordinator(name, process_group or whole, process_group or whole)


def prepare():
    """The pass, vLLM's pass manager with it, and a group, which lives as long as it is kept."""
    serving_stubs.install_vllm()
    import shingle
    from vllm.compilation.passes.pass_manager import PostGradPassManager

    torch._dynamo.reset()
    torch._inductor.config.force_disable_caches = True
    compile_range(513, 8192)
    manager = PostGradPassManager()
    manager.add(shingle.vllm_pass)
    return shingle.vllm_pass, manager, group(GROUP)


def compile_range(start, end):
    """The range of later compilations."""
    from vllm.compilation.passes import inductor_pass

    inductor_pass._pass_context = inductor_pass.PassContext(serving_stubs.Range(start, end))


def compiled(function, manager, backend, dynamic):
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx

    def run_pass(graph_module, inputs, **_):
        manager(graph_module.graph)
        graph_module.graph.lint()
        graph_module.recompile()
        return make_boxed_func(graph_module.forward)

    def without_code(graph_module, inputs):
        return compile_fx(graph_module, inputs, inner_compile=run_pass)

    torch._inductor.config.post_grad_custom_post_pass = manager
    return torch.compile(function, backend=without_code if backend is None else backend, dynamic=dynamic)


def pass_case(name, backend):
    (vllm_pass, manager, kept), (function, wanted) = prepare(), CASES[name]
    unknown = serving_stubs.GroupCoordinator("tp:7", dist.group.WORLD, None)
    for dtype, dynamic in ((torch.float32, False), (torch.bfloat16, True)):
        torch._dynamo.reset()
        inputs = [torch.randn(*shape, dtype=dtype) for shape in ((ROWS, K), (N, K), (ROWS, N), (N,))]
        inputs = inputs[: function.__code__.co_argcount]
        with torch.no_grad():
            expected, before = function(*inputs), vllm_pass.matches.copy()
            got = compiled(function, manager, backend, dynamic)(*inputs)
        torch.testing.assert_close(got, expected, atol=0.2 if dynamic else 1e-4, rtol=0.05)
        assert vllm_pass.matches - before == wanted, (vllm_pass.matches, before)
    assert name == "gather" or kept.all_reduces + unknown.all_reduces > 0
    from shingle.torch import counters

    assert all(counters()[f"vllm.{name}"] >= count for name, count in wanted.items())


@pytest.mark.parametrize("name", CASES)
def test_pass(ranks, name):
    ranks(pass_case, name, None)


@pytest.mark.parametrize("name", ["reduce", "norm"])
def test_pass_in_inductor(ranks, name):
    ranks(pass_case, name, "inductor")


def own_all_reduce_case():
    """A call that is not overlapped is vLLM's all-reduce."""
    _, _, kept = prepare()
    from shingle import torch as st

    st.gemm_all_reduce(torch.randn(ROWS, K), torch.randn(N, K), GROUP)
    assert kept.all_reduces == 1


def test_calls_that_are_not_overlapped_run_as_in_vllm(ranks):
    ranks(own_all_reduce_case)


def ranges_case():
    vllm_pass, manager, _ = prepare()
    for start, end, served in ((1, 512, False), (513, 8192, True), (512, 4096, True), (1, 8192, False),
                               (513, 16384, False), (8193, 16384, False), (512, 512, True)):  # fmt: skip
        assert vllm_pass.is_applicable_for_range(serving_stubs.Range(start, end)) == served, (start, end)
    from vllm import envs

    envs.VLLM_BATCH_INVARIANT = True
    assert not vllm_pass.is_applicable_for_range(serving_stubs.Range(513, 8192))
    envs.VLLM_BATCH_INVARIANT = False
    compile_range(1, 512)
    before = vllm_pass.matches.copy()
    with torch.no_grad():
        compiled(reduce, manager, None, True)(torch.randn(ROWS, K), torch.randn(N, K))
    assert vllm_pass.matches == before


def test_ranges_below_min_m_or_above_max_m_are_left_alone(ranks):
    ranks(ranges_case)


def bias_case():
    """Rank 0 adds the bias in its GEMM. No rank may replace the all-reduce of that layer."""
    vllm_pass, manager, kept = prepare()
    from shingle.torch import vllm
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.linear import RowParallelLinear

    parallel_state._TP = kept
    w, other, bias = torch.randn(N, K), torch.randn(N + 2, K), torch.randn(N)
    RowParallelLinear(2 * K, N + 4, disable_tp=True)
    RowParallelLinear(2 * K, N + 4, skip_bias_add=True)
    RowParallelLinear(2 * K, N + 4, bias=False)
    assert not vllm.biased
    RowParallelLinear(2 * K, N)
    assert vllm.biased == {(N, K)}

    def function(x):
        first = F.linear(x, w, bias if dist.get_rank() == 0 else None)
        return torch.ops.vllm.all_reduce(first, GROUP), torch.ops.vllm.all_reduce(F.linear(x, other), GROUP)

    x, before = torch.randn(ROWS, K), vllm_pass.matches.copy()
    with torch.no_grad():
        torch.testing.assert_close(compiled(function, manager, None, True)(x), function(x))
    vllm.biased.clear()
    assert vllm_pass.matches - before == {"mm_all_reduce": 1}


def test_layers_whose_bias_only_rank_0_adds_are_left_alone(ranks):
    ranks(bias_case)


class Quantised:
    def apply(self, layer, x, bias=None):
        return F.linear(x, layer.weight, bias)


def eager_case():
    """Layers that vLLM runs without torch.compile, each with the number of calls that are served."""
    vllm_pass, manager, kept = prepare()
    import shingle.torch
    from shingle.torch import vllm, vllm_layers
    from vllm import envs
    from vllm.distributed import parallel_state
    from vllm.model_executor import custom_op
    from vllm.model_executor.layers.linear import RowParallelLinear

    vllm_layers.register()
    parallel_state._TP = kept
    shingle.torch.configure(min_m=ROWS, max_m=ROWS + 1)
    x, rank = torch.randn(ROWS, K), dist.get_rank()

    def serves(wanted, x=x, run=lambda layer: layer, **options):
        layer = RowParallelLinear(2 * K, N, **options)
        assert type(layer) is vllm_layers.RowParallelLinear
        torch.manual_seed(1)
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        before = vllm_pass.matches["row_parallel"]
        with torch.inference_mode():
            got, expected = run(layer)(x * (rank + 1)), super(vllm_layers.RowParallelLinear, layer).forward(x * (rank + 1))
        torch.testing.assert_close(got, expected)
        assert vllm_pass.matches["row_parallel"] - before == wanted, options

    for options in ({}, {"bias": False}, {"skip_bias_add": True}, {"return_bias": False}):
        serves(1, **options)
    serves(1, torch.randn(2, ROWS // 2, K))
    serves(0, torch.randn(ROWS - 1, K))
    serves(0, torch.randn(ROWS + 2, K))
    serves(0, bias=False, reduce_results=False)
    serves(0, torch.randn(ROWS, 2 * K), disable_tp=True)
    serves(0, input_is_parallel=False)
    serves(0, quant_config=Quantised())
    matched = vllm_pass.matches["mm_all_reduce"]
    vllm.biased.clear()
    compile_range(ROWS, ROWS + 1)
    serves(0, bias=False, run=lambda layer: compiled(layer, manager, None, True))
    assert vllm_pass.matches["mm_all_reduce"] == matched + 1
    envs.VLLM_BATCH_INVARIANT = True
    serves(0)
    envs.VLLM_BATCH_INVARIANT = False
    shingle.torch.configure(min_m=512, max_m=8192)
    custom_op.op_registry_oot.clear()
    vllm.biased.clear()


def test_layers_without_compilation(ranks):
    ranks(eager_case)


def test_layers_without_compilation_that_serve_nothing_warn():
    program = """
import torch, types
from vllm.distributed import parallel_state
from vllm.model_executor.layers.linear import RowParallelLinear
from shingle.torch.vllm import register
register()
parallel_state._TP = types.SimpleNamespace(world_size=2, rank_in_group=0, all_reduce=lambda x: x)
RowParallelLinear(8, 4, disable_tp=True)(torch.ones(600, 8))
RowParallelLinear(8, 4)(torch.ones(2, 4))
"""
    assert run(program, SHINGLE_VLLM="0")[1] == ""
    assert "the vLLM plugin replaced nothing" in run(program, SHINGLE_VLLM="1")[1]


def test_another_plugin_keeps_its_layer():
    program = """
from vllm.model_executor import custom_op
from vllm.model_executor.layers.linear import RowParallelLinear
class Other(RowParallelLinear): pass
RowParallelLinear.register_oot(Other)
from shingle.torch.vllm import register
register()
assert custom_op.op_registry_oot == {"RowParallelLinear": Other}
"""
    assert "to a plugin that replaces RowParallelLinear too" in run(program, SHINGLE_VLLM="1")[1]


def rows_of_another_group_case():
    """The name of a group stays in the graph, and may mean another group in another process."""
    _, manager, _ = prepare()
    made = compiled(reduce, manager, None, False)
    x, w = torch.randn(ROWS, K), torch.randn(N, K)
    with torch.no_grad():
        expected = made(x, w)
        mine = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
        alone = group(GROUP, mine)
        torch.testing.assert_close(made(x, w), F.linear(x, w))
        kept = group(GROUP)
        torch.testing.assert_close(made(x, w), expected)
        assert alone.all_reduces == kept.all_reduces == 1


def test_groups_are_found_when_the_op_runs(ranks):
    ranks(rows_of_another_group_case)


def run(program, vllm=True, **variables):
    """Runs a program in a process of its own, after the stand-in's installation. Returns stdout and stderr."""
    here = os.path.dirname(__file__)
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
    program = ("import serving_stubs; serving_stubs.install_vllm()\n" if vllm else "") + program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


BY_NAME = """
from vllm.config import CompilationConfig, VllmConfig
passes = {"post_grad_custom_post_pass": "shingle.vllm_pass"}
config = VllmConfig(2, CompilationConfig(passes, [512]))
"""


def test_vllm_finds_the_pass_by_name_in_the_package():
    program = """
import copy, json, pickle
from vllm.compilation.passes.pass_manager import PostGradPassManager
compile_config = config.compilation_config.inductor_compile_config
manager = PostGradPassManager()
manager.add(compile_config["post_grad_custom_post_pass"])
(made,) = manager.passes
assert copy.deepcopy(compile_config)["post_grad_custom_post_pass"] is made
assert pickle.loads(pickle.dumps(made)) is made
import shingle
assert shingle.vllm_pass is made
print(json.dumps(made.uuid()), pickle.dumps(made).hex())
print([(str(r), made.is_applicable_for_range(r)) for r in config.compilation_config.get_compile_ranges()])
"""
    first, errors = run(BY_NAME + program)
    second, _ = run(BY_NAME + program)
    assert first == second  # a uuid that is no function of the content would defeat vLLM's caches
    assert "[('(1, 512)', False), ('(513, 8192)', True)]" in first
    assert "the vLLM plugin replaced nothing" in errors
    uuid, _, stored = first.splitlines()[0].rpartition(" ")
    assert not run(BY_NAME + program, SHINGLE_MIN_M="256")[0].startswith(uuid)
    program = f"import pickle, sys; made = pickle.loads(bytes.fromhex('{stored}')); import shingle"
    run(program + "; assert made is shingle.vllm_pass and 'vllm' in sys.modules")


def test_a_range_on_both_sides_of_min_m_warns():
    program = "import shingle; assert not shingle.vllm_pass.is_applicable_for_range(serving_stubs.Range(129, 8192))"
    assert "compile range (129, 8192) to vLLM" in run(program)[1]


PLUGIN = """
from shingle.torch.vllm import register
register(); register()
from vllm.config import VllmConfig
for ranks in (1, 2):
    config = VllmConfig(ranks, max_num_batched_tokens=16384).compilation_config
    print(sorted(config.inductor_compile_config), [str(r) for r in config.get_compile_ranges()])
"""


def test_plugin_adds_the_pass_if_it_is_asked_for():
    alone = "[] ['(1, 16384)']\n"
    served = "['post_grad_custom_post_pass'] ['(1, 512)', '(513, 8192)', '(8193, 16384)']\n"
    assert run(PLUGIN) == (2 * alone, "")
    assert run(PLUGIN, SHINGLE_VLLM="0") == (2 * alone, "")
    assert run(PLUGIN, SHINGLE_VLLM="1") == (alone + served, "")


def test_plugin_leaves_another_pass_alone():
    program = """
from shingle.torch.vllm import register
register()
from vllm.config import CompilationConfig, VllmConfig
config = CompilationConfig()
config.inductor_compile_config["post_grad_custom_post_pass"] = print
VllmConfig(2, config)
assert config.inductor_compile_config["post_grad_custom_post_pass"] is print
del VllmConfig._set_compile_ranges
"""
    assert "another post_grad_custom_post_pass" in run(program, SHINGLE_VLLM="1")[1]


def test_plugin_of_a_vllm_that_changed_says_so():
    program = "from vllm.config import VllmConfig; del VllmConfig._set_compile_ranges\n"
    program += "from shingle.torch.vllm import register; register()"
    assert "no VllmConfig._set_compile_ranges" in run(program, SHINGLE_VLLM="1")[1]


def test_without_vllm():
    program = """
import shingle
try:
    shingle.vllm_pass
except shingle.errors.Unsupported as error:
    print(error)
"""
    assert "needs vLLM 0.20 or newer" in run(program, vllm=False)[0]
    assert run("import shingle, sys; assert 'torch' not in sys.modules", vllm=False) == ("", "")


def test_an_old_vllm_does_not_break_the_package():
    program = "import sys; del sys.modules['vllm.compilation.passes.inductor_pass']; import shingle"
    assert "no vllm_pass" in run(program)[1]
