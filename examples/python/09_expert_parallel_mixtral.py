#!/usr/bin/env python3
"""A Mixtral of Transformers whose experts are spread over the ranks by one line; then checked against one rank.

    torchrun --nproc-per-node 2 examples/python/09_expert_parallel_mixtral.py [MODEL]

Without MODEL it makes a tiny Mixtral with random weights. MODEL may be any model with experts that the line serves. It
needs the package transformers. Each rank has texts of its own: its tokens travel to their experts and back.
"""

import copy
import sys

import torch
import torch.distributed as dist
from ranks import join, say
from shingle import torch as st
from transformers import AutoModelForCausalLM, MixtralConfig, MixtralForCausalLM

TEXTS, TOKENS = 2, 32  # texts of a rank, and tokens of each


def load(path, device):
    if path:
        return AutoModelForCausalLM.from_pretrained(path).to(device)
    torch.manual_seed(0)
    config = MixtralConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                           num_attention_heads=4, num_key_value_heads=2, num_local_experts=8)  # fmt: skip
    return MixtralForCausalLM(config).to(device)


def average(model, ranks):
    """Averages gradients over the ranks. Those of experts are sums over the tokens of all ranks already."""
    for name, parameter in model.named_parameters():
        if ".experts." not in name:
            dist.all_reduce(parameter.grad)
        parameter.grad /= ranks


def main():
    device = join()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = load(sys.argv[1] if len(sys.argv) > 1 else None, device)
    model = copy.deepcopy(whole)
    blocks = st.expert_parallel(model)

    texts = torch.randint(0, 256, (ranks, TEXTS, TOKENS), generator=torch.Generator().manual_seed(1)).to(device)
    loss = model(texts[rank], labels=texts[rank]).loss
    loss.backward()
    average(model, ranks)
    loss = loss.detach() / ranks
    dist.all_reduce(loss)

    expected = whole(texts.flatten(0, 1), labels=texts.flatten(0, 1)).loss
    expected.backward()
    error = 0.0
    for (name, got), wanted in zip(model.named_parameters(), whole.parameters()):
        grad = wanted.grad.chunk(ranks)[rank] if ".experts." in name else wanted.grad
        error = max(error, ((got.grad - grad).norm() / grad.norm().clamp_min(1e-12)).item())
    assert abs(loss.item() - expected.item()) < 1e-3 * expected.item(), (loss, expected)
    assert error < 2e-2, error
    say(f"experts of {blocks} blocks on {ranks} ranks: loss {loss.item():.4f}, on one rank {expected.item():.4f}; "
        f"gradients differ by {error:.1e}")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
