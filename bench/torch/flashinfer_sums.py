"""FlashInfer's all-reduces (TensorRT-LLM's one-shot and two-shot kernels), alone or fused with residual and RMSNorm."""
import torch
import torch.distributed as dist

RANKS = (2, 4, 8)  # those for which FlashInfer chooses between one shot and two


def load(world):
    """Returns (the package, None), or (None, why it cannot run). FlashInfer compiles kernels that it has not cached."""
    if world not in RANKS:
        return None, f"there are {world} ranks; it takes 2, 4 or 8"
    try:
        import flashinfer.comm
        from flashinfer.comm.trtllm_ar import get_trtllm_comm_module

        get_trtllm_comm_module()
        return flashinfer, None
    except Exception as error:  # of the import, the compiler or the linker
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


class FlashInferSums:
    """FlashInfer's buffers for sums of up to `largest` rows of n. Its backend `trtllm` uses no NVLink multicast."""

    def __init__(self, flashinfer, rank, world, largest, n):
        self.version, self.comm = flashinfer.__version__, flashinfer.comm
        self.workspace = self.comm.create_allreduce_fusion_workspace(
            backend="trtllm", world_size=world, rank=rank, max_token_num=largest, hidden_dim=n, dtype=torch.bfloat16)

    def run(self, pattern, part, **tensors):
        """FlashInfer chooses one shot or two. With PDL, the kernel's launch overlaps with the kernel before it."""
        return self.comm.allreduce_fusion(input=part, workspace=self.workspace, pattern=pattern, launch_with_pdl=True,
                                          fp32_acc=True, **tensors)

    def sum(self, part):
        return self.run(self.comm.AllReduceFusionPattern.kAllReduce, part)

    def add_and_normalise(self, part, residual, weight, eps):
        """Returns the normalised sum, and the sum with the residual."""
        normalised, total = torch.empty_like(part), torch.empty_like(part)
        self.run(self.comm.AllReduceFusionPattern.kARResidualRMSNorm, part, residual_in=residual, residual_out=total,
                 norm_out=normalised, rms_gamma=weight, rms_eps=eps)
        return normalised, total

    def close(self):
        self.workspace.destroy()


def find(rank, world, largest, n):
    """Returns (FlashInferSums, None), or (None, why a rank cannot run FlashInfer). All ranks call it."""
    flashinfer, lack = load(world)
    lacks = [None] * world
    dist.all_gather_object(lacks, lack)
    if why := next(filter(None, lacks), None):
        return None, why
    return FlashInferSums(flashinfer, rank, world, largest, n), None
