"""Row-parallel linear layers of vLLM and SGLang that run without torch.compile: gemm_all_reduce.

Both frameworks have a class RowParallelLinear with these attributes. A layer with reduce_results sums its products over
the ranks itself, and adds its bias on rank 0 alone. gemm_all_reduce adds the bias once.
"""

from .functional import gemm_all_reduce
from .settings import settings


def sums(layer, method):
    """True if a layer multiplies without quantisation and sums over the ranks. method: the framework's class of
    unquantised linear layers."""
    return layer.reduce_results and layer.input_is_parallel and type(layer.quant_method) is method


def is_worth(x):
    """True if x [..., k] has a number of rows that is served."""
    return x.dim() > 1 and settings.min_m <= x.numel() // x.shape[-1] <= settings.max_m


def forward(layer, x, group):
    """The sum over the group, and the bias that the caller has to add, or None."""
    apart = layer.skip_bias_add
    return gemm_all_reduce(x, layer.weight, group, bias=None if apart else layer.bias), layer.bias if apart else None
