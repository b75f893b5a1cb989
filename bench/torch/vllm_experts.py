"""vLLM's layer of experts on several ranks, as vLLM runs it without DeepEP: gather, `fused_experts`, reduce-scatter."""
import contextlib
import importlib.metadata

import torch
import torch.distributed as dist

from record import slowest_us

# vLLM ships files of tuned tiles, but none for half of the experts of these models. These are what its files for Hopper
# say most often of 1024 tokens and more; the next most often is what vLLM chooses without a file.
TUNED = [
    {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 16, "num_warps": 8, "num_stages": 4},
    {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 256, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 8, "num_stages": 4},
    {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3},
]
TRIALS = 4  # of the tiles, the first of which compiles


def load():
    """Returns (vLLM's package fused_moe, None), or (None, why it cannot run)."""
    try:
        from vllm.model_executor.layers import fused_moe
        from vllm.platforms import current_platform

        current_platform.import_kernels()
        for kernel in (torch.ops._C.silu_and_mul, torch.ops._moe_C.moe_align_block_size, torch.ops._moe_C.moe_sum):
            kernel.default  # raises where a library of kernels is missing
        fused_moe.fused_experts  # is missing without Triton
        return fused_moe, None
    except Exception as error:  # of the import, or of a library that it loads
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


def find(world):
    """Returns (vLLM's package fused_moe, None), or (None, why a rank cannot run it). All ranks call it."""
    fused_moe, lack = load()
    lacks = [None] * world
    dist.all_gather_object(lacks, lack)
    if why := next(filter(None, lacks), None):
        return None, why
    return fused_moe, None


def version_of(fused_moe):
    """What a record says of vLLM."""
    return {"vllm": importlib.metadata.version("vllm")} if fused_moe else {}


class VllmLayer:
    """The layer of a case of experts.py. Each rank multiplies all ranks' tokens by its part of the experts."""

    def __init__(self, fused_moe, case):
        self.fused_moe, self.case = fused_moe, case
        own, device = case.experts // case.world, case.x.device
        self.expert_map = torch.full((case.experts,), -1, dtype=torch.int32, device=device)
        self.expert_map[case.rank * own : (case.rank + 1) * own] = torch.arange(own, dtype=torch.int32)
        self.topk_ids = case.of_all[case.rank].view(case.topk, -1).t().to(device, torch.int32).contiguous()
        self.tiles = None

    def gather(self, *parts):
        """Tensors of all ranks, by one launch of NCCL, which takes tensors of one type."""
        everyone = [part.new_empty(self.case.world * len(part), part.shape[1]) for part in parts]
        with dist.distributed_c10d._coalescing_manager():
            for gathered, part in zip(everyone, parts):
                dist.all_gather_into_tensor(gathered.view(torch.int32), part.view(torch.int32))
        return everyone

    def __call__(self):
        case = self.case
        x, ids, weights = self.gather(case.x, self.topk_ids, case.topk_weights)
        with self.fused_moe.override_config(self.tiles) if self.tiles else contextlib.nullcontext():
            sums = self.fused_moe.fused_experts(x, case.up, case.down, weights, ids, global_num_experts=case.experts,
                                                expert_map=self.expert_map)
        out = torch.empty_like(case.x)
        dist.reduce_scatter_tensor(out, sums)
        return out

    def tune(self):
        """Keeps the tiles with which the slowest rank is fastest: those that vLLM chooses, or some of TUNED."""
        times = {}
        for number, self.tiles in enumerate(choices := [None, *TUNED]):
            times[number] = min(slowest_us(self) for _ in range(TRIALS))
        self.tiles = choices[min(times, key=times.get)]


class ReplicatedLayer(VllmLayer):
    """The same in tensor-parallel inference: all ranks have the same tokens, and a slice of every expert."""

    def __init__(self, fused_moe, case):
        self.fused_moe, self.case, self.tiles = fused_moe, case, None
        self.topk_ids = case.of_all[0].view(case.topk, -1).t().to(case.x.device, torch.int32).contiguous()

    def __call__(self):
        case = self.case
        with self.fused_moe.override_config(self.tiles) if self.tiles else contextlib.nullcontext():
            sums = self.fused_moe.fused_experts(case.x, case.up, case.down, case.topk_weights, self.topk_ids)
        dist.all_reduce(sums)
        return sums
