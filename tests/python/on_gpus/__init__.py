"""The cases of gpu_ops.py, in the order in which it runs them."""

from . import compiled, data_parallel, eager, experts, graphs, patches

CASES = {
    case.__name__: case
    for case in (
        eager.forward_bf16, eager.forward_f16, eager.forward_f32, eager.backward_bf16, eager.attention_by_fused,
        eager.attention_choices, experts.experts_choices, experts.sliced_experts_choices, experts.experts_with_capacity,
        experts.sliced_experts_with_capacity, experts.replicated_experts_with_capacity,
        eager.scatter_gradients, eager.strides,
        eager.side_stream, eager.two_groups, graphs.cuda_graph, graphs.repeated, patches.patched_symm_mem,
        patches.patched_fp8,
        compiled.compiled, graphs.warmup, compiled.compiled_with_graphs,
        data_parallel.random_buckets, data_parallel.fsdp2, data_parallel.ddp, data_parallel.beside_tensor_parallelism,
    )
}  # fmt: skip
