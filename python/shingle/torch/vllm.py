"""vLLM: GEMMs before all-reduces of prefill become gemm_all_reduce.

    SHINGLE_VLLM=1 vllm serve MODEL -tp 4

`vllm_pass` is the Inductor pass, for `inductor_passes` of vLLM's compilation config. `register` is the plugin that adds
it there if SHINGLE_VLLM=1. The pass serves compile ranges between min_m and max_m of shingle.torch.configure. Smaller
batches keep vLLM's own kernels. The plugin also serves row-parallel layers that vLLM runs without torch.compile:
shingle.torch.vllm_layers. If SHINGLE_EXPERTS=1, it serves mixture-of-experts layers, too:
shingle.torch.vllm_experts.

vLLM adds the bias of a row-parallel layer on rank 0 alone, so graphs of ranks differ. GEMMs of the shape of such a
layer stay with vLLM on all ranks.

Graphs keep vLLM's names of groups, as "tp:0", which an op resolves when it runs. Names of c10d count the groups of a
process, and a graph from vLLM's cache may run in a process with other groups.
"""

import functools
import logging
import os

import torch
from torch._inductor.custom_graph_pass import get_hash_for_files
from torch.fx.experimental.symbolic_shapes import guard_or_true

from ..errors import Unsupported
from . import inductor, ops  # noqa: F401  compiled graphs from a cache need torch.ops.shingle
from .counters import expect
from .groups import Registry, registries
from .settings import settings

try:
    from vllm import envs
    from vllm.compilation.passes.inductor_pass import InductorPass
except ImportError as error:
    raise Unsupported(f"shingle.torch.vllm needs vLLM 0.20 or newer: {error}") from error

logger = logging.getLogger("vllm.shingle")  # below vLLM's logger, for its format and level
PASS_KEY = "post_grad_custom_post_pass"


def find_process_group(name):
    """The ProcessGroup of one of vLLM's group names, or None."""
    from vllm.distributed import parallel_state  # late: vLLM imports plugins before it is complete

    reference = parallel_state._groups.get(name)
    group = reference and reference()
    return group and group.device_group


registries.append(Registry(find_process_group, lambda x, name: torch.ops.vllm.all_reduce(x, name)))

biased: set[tuple[int, int]] = set()  # [out, in] of row-parallel layers whose bias only rank 0 adds


def is_row_parallel(kind):
    return kind.__name__ == "RowParallelLinear" and kind.__module__.startswith("vllm.")


def note_bias(module, name, parameter):
    """Called for each parameter of every module; see the head of this file."""
    if name != "bias" or parameter is None or not any(map(is_row_parallel, type(module).__mro__)):
        return
    if module.tp_size > 1 and not module.skip_bias_add:
        biased.add((module.output_size, module.input_size_per_partition))


torch.nn.modules.module.register_module_parameter_registration_hook(note_bias)


def is_biased(mm):
    """True if a product may be that of a layer in `biased`."""
    k, n = mm.args[1].meta["val"].shape
    return any(guard_or_true(n == out) and guard_or_true(k == into) for out, into in biased)


@functools.cache
def collectives():
    vllm = torch.ops.vllm
    return (
        inductor.Collective(vllm.all_gather.default, inductor.rewrite_all_gather, group=3, wanted=(1, 0)),
        inductor.Collective(vllm.all_reduce.default, inductor.rewrite_all_reduce, group=1),
        inductor.Collective(vllm.reduce_scatter.default, inductor.rewrite_reduce_scatter, group=3, wanted=(1, 0)),
    )


@functools.cache  # eager layers call it each time
def expect_matches():
    """Warns at exit if nothing was replaced. For processes that run models."""
    expect(
        "vllm.", "the vLLM plugin", "The model needs unquantised row-parallel layers, and vLLM compile ranges, or "
        f"batches without torch.compile, within SHINGLE_MIN_M = {settings.min_m} and SHINGLE_MAX_M = {settings.max_m}.",
    )  # fmt: skip


class VllmPass(inductor.OverlapPass, InductorPass):
    """The pass on vLLM's collectives and norms."""

    source = "vllm"

    def __init__(self):
        super().__init__()
        self.more: list[inductor.Collective] = []  # of layers that the plugin also serves

    def uuid(self):
        """Identifies the pass in vLLM's caches. vLLM writes it as JSON, so it is a string."""
        experts = os.path.join(os.path.dirname(__file__), "vllm_experts.py")  # not imported: it imports vLLM's layers
        files = get_hash_for_files((__file__, inductor.__file__, experts)).hex()
        return f"{files} {len(self.more)} {settings.min_m} {settings.max_m}"

    def __reduce__(self):
        return "vllm_pass"  # the one of the process that reads it: vLLM sends its config to workers, and copies it

    def is_applicable_for_range(self, compile_range):
        """True if all batch sizes of a compile range are worth a fused op, and results may depend on the batch."""
        expect_matches()
        least, most = compile_range.start, compile_range.end
        if least < settings.min_m < most:
            logger.warning(
                "Shingle leaves compile range %s to vLLM: it holds sizes on both sides of SHINGLE_MIN_M = %d. Set "
                "SHINGLE_VLLM=1, or add %d to compile_ranges_endpoints.", compile_range, settings.min_m, settings.min_m,
            )  # fmt: skip
        return settings.min_m <= least and most <= settings.max_m and not envs.VLLM_BATCH_INVARIANT

    def collectives(self):
        return *collectives(), *self.more

    def is_served(self, node, collective):
        if not super().is_served(node, collective):
            return False
        mm, _ = inductor.product_before(node)
        return mm is None or not is_biased(mm)

    def rewrite_norm(self, graph, reduced):
        return rewrite_fused_norm(graph, reduced) or super().rewrite_norm(graph, reduced)

    def count(self, name):
        if not self.matches:
            logger.info("Shingle overlaps GEMMs with collectives: first match %s", name)
        super().count(name)


vllm_pass = VllmPass()


def rewrite_fused_norm(graph, reduced):
    """all_reduce → vllm_ir.fused_add_rms_norm(x, residual, weight, epsilon), which vLLM lowers later."""
    norm = inductor.only_user(reduced)
    if norm is None or str(norm.target) != "vllm_ir.fused_add_rms_norm.default" or norm.args[4:] not in ((), (None,)):
        return None
    x, residual, weight, eps = norm.args[:4]
    if x is not reduced or weight is None or not inductor.same_kind(residual, reduced):
        return None
    if weight.meta["val"].dtype != reduced.meta["val"].dtype:
        return None
    x, w, group = reduced.args
    args = (x, w, residual, weight, group, None, eps)
    norm.replace_all_uses_with(inductor.insert(graph, norm, inductor.ours.gemm_all_reduce_norm.default, *args))
    graph.erase_node(norm)
    return "mm_all_reduce_norm"


def serve(config):
    """Adds the pass to a VllmConfig of several tensor-parallel ranks, and its limits to the compile ranges."""
    compilation = config.compilation_config
    if config.parallel_config.tensor_parallel_size == 1:
        return
    if compilation.inductor_compile_config.setdefault(PASS_KEY, vllm_pass) is not vllm_pass:
        logger.warning("SHINGLE_VLLM=1 does nothing in compiled graphs: inductor_passes has another %s", PASS_KEY)
        return
    ends = {*(compilation.compile_ranges_endpoints or ()), settings.min_m, settings.max_m}
    compilation.compile_ranges_endpoints = sorted(ends)


def serve_experts():
    try:
        from . import vllm_experts
    except ImportError as error:
        logger.warning("SHINGLE_EXPERTS=1 does nothing: it needs vLLM 0.33 or newer: %s", error)
    else:
        vllm_experts.register()


def register():
    """Entry point of vLLM's general plugins. It does nothing unless SHINGLE_VLLM=1."""
    if os.environ.get("SHINGLE_VLLM", "0") == "1":
        serve_all()


@functools.cache  # vLLM may run plugins again
def serve_all():
    """Makes every VllmConfig that is made later `serve`, and layers ours."""
    from vllm.config import VllmConfig

    from . import vllm_layers  # late: it imports vLLM's layers

    vllm_layers.register()
    if settings.serve_experts:
        serve_experts()
    set_ranges = getattr(VllmConfig, "_set_compile_ranges", None)
    if set_ranges is None:
        logger.warning("SHINGLE_VLLM=1 does nothing in compiled graphs: this vLLM has no VllmConfig._set_compile_ranges")
        return

    @functools.wraps(set_ranges)
    def served(self):
        serve(self)
        set_ranges(self)

    VllmConfig._set_compile_ranges = served
