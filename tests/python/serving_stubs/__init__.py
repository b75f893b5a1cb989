"""Stand-ins for the parts of vLLM and SGLang that shingle.torch uses. Ops run on CPU by gloo.

Names, signatures and order of calls are those of the releases that each file names.
"""

from .sglang import install_sglang
from .vllm import GroupCoordinator, Range, install_vllm

__all__ = ["GroupCoordinator", "Range", "install_sglang", "install_vllm"]
