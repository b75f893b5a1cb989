#!/usr/bin/env python3
"""A Llama of Transformers whose tensor-parallel layers are Shingle's: one line before from_pretrained.

    torchrun --nproc-per-node 2 examples/python/04_llama_with_tp_plan.py [MODEL]

Without MODEL it makes a tiny Llama with random weights. It needs the packages transformers and accelerate.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from ranks import join, say
from shingle import torch as st
from shingle.torch import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig


def tiny_llama(folder):
    """Saves a model on rank 0, and returns its path on all ranks."""
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                             num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
    path = [folder]
    dist.broadcast_object_list(path)
    return path[0]


def main():
    device = join()
    with tempfile.TemporaryDirectory() as folder:
        path = sys.argv[1] if len(sys.argv) > 1 else tiny_llama(folder)
        whole = AutoModelForCausalLM.from_pretrained(path).to(device)
        transformers.register()  # "rowwise" and "colwise" of every tp_plan are now Shingle's
        model = AutoModelForCausalLM.from_pretrained(
            path, distributed_config=DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
        )
        dist.barrier()
    tokens = torch.arange(32, device=device)[None]
    with torch.no_grad():
        logits, expected = model(tokens).logits, whole(tokens).logits
    error = ((logits - expected).norm() / expected.norm()).item()
    assert error < 1e-2, error
    layers = {name: n for name, n in st.counters().items() if name.startswith("transformers.")}
    say(f"logits {tuple(logits.shape)} differ by {error:.1e} from the unsharded model; replaced layers: {layers}")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
