"""vLLM's row-parallel layers where vLLM runs them without torch.compile.

That is under --enforce-eager, with breakable CUDA graphs, which are vLLM's choice for some models, and in encoders.
`register` makes vLLM build the class of this file in place of its own, by register_oot, which vLLM has for such
plugins; its LoRA layers know classes that were registered so. Compiled code is left to vllm_pass.
"""

import torch
from vllm import envs
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor import custom_op
from vllm.model_executor.layers import linear

from . import row_parallel
from .vllm import expect_matches, logger, vllm_pass


class RowParallelLinear(linear.RowParallelLinear):
    """vLLM's layer, as gemm_all_reduce for batches between min_m and max_m of shingle.torch.configure."""

    def forward(self, input_):
        if torch.compiler.is_compiling() or self.tp_size == 1:
            return super().forward(input_)
        expect_matches()
        served = row_parallel.sums(self, linear.UnquantizedLinearMethod) and row_parallel.is_worth(input_)
        if not served or envs.VLLM_BATCH_INVARIANT:
            return super().forward(input_)
        vllm_pass.count("row_parallel")
        out, bias = row_parallel.forward(self, input_, get_tp_group().unique_name)
        return (out, bias) if self.return_bias else out


def register():
    """Call it once a process, before models are built."""
    if RowParallelLinear.__name__ in custom_op.op_registry_oot:
        logger.warning("Shingle leaves layers without torch.compile to a plugin that replaces RowParallelLinear too")
    else:
        linear.RowParallelLinear.register_oot(RowParallelLinear)
