"""Twins of PyTorch's styles for parallelize_module: of torch.distributed.tensor.parallel, and _ContextParallel.

    parallelize_module(block, mesh, {"wo": RowwiseParallel(output_layouts=Shard(1)), "w1": ColwiseParallel()})

Parameters are sharded as by the styles of PyTorch, so checkpoints and FSDP2 see the same DTensors. Embeddings, layers
whose features the ranks do not divide, and layouts other than Replicate and Shard of a leading dimension run as in
PyTorch. A scattered or gathered dimension other than the rows of a matrix must be divisible by the ranks.
"""

import functools

from torch import nn
from torch.distributed.tensor import Shard, distribute_module, parallel

from . import parallel_styles as styles
from .context_parallel import attention

SequenceParallel = parallel.SequenceParallel  # of norms: no GEMM to overlap with


class RowwiseParallel(parallel.RowwiseParallel):
    """As PyTorch's. Outputs of layout Replicate are gemm_all_reduce, of Shard(dim) gemm_reduce_scatter."""

    def _apply(self, module: nn.Module, device_mesh):
        (given,), (wanted,) = self.input_layouts, self.output_layouts
        served = isinstance(module, nn.Linear) and given == Shard(-1) and styles.is_leading(wanted)
        if not served or not styles.is_even(module, device_mesh):
            return super()._apply(module, device_mesh)
        distribute_module(module, device_mesh, self._partition_linear_fn)
        return styles.install(module, styles.rowwise, device_mesh, wanted, self.use_local_output)


class ColwiseParallel(parallel.ColwiseParallel):
    """As PyTorch's. Inputs of layout Shard(dim) are all_gather_gemm; of Replicate, backward is gemm_all_reduce."""

    def _apply(self, module: nn.Module, device_mesh):
        (given,), (wanted,) = self.input_layouts, self.output_layouts
        served = isinstance(module, nn.Linear) and styles.is_leading(given) and wanted == Shard(-1)
        if not served or not styles.is_even(module, device_mesh):
            return super()._apply(module, device_mesh)
        distribute_module(module, device_mesh, self._partition_linear_fn)
        return styles.install(module, styles.colwise, device_mesh, given, self.use_local_output)


class ContextParallel(parallel.ParallelStyle):
    """Of modules whose forward attends: scaled_dot_product_attention in it is ring_attention.

        parallelize_module(model, mesh, {"layers.*.attention": ContextParallel()})

    Inputs are this rank's tokens, as of context_parallel_shard(zigzag=zigzag).
    """

    def __init__(self, *, zigzag=True):
        super().__init__()
        self.zigzag = zigzag

    def _apply(self, module: nn.Module, device_mesh):
        forward, group = module.forward, device_mesh.get_group().group_name

        @functools.wraps(forward)
        def attending(*args, **kwargs):
            with attention(group, self.zigzag):
                return forward(*args, **kwargs)

        module.forward = attending
        return module
