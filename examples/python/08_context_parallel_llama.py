#!/usr/bin/env python3
"""A Llama of Transformers on a sequence whose tokens are sharded over the ranks (ring attention), as it is.

    torchrun --nproc-per-node 2 examples/python/08_context_parallel_llama.py [MODEL]

Without MODEL it makes a tiny Llama with random weights. It needs the packages transformers and accelerate. Loss and
gradients are compared with those of the whole sequence on one rank.
"""

import copy
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import join, say
from shingle import torch as st
from shingle.torch import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

TOKENS = 64


def load(path, device):
    if path:
        return AutoModelForCausalLM.from_pretrained(path).to(device)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    return LlamaForCausalLM(config).to(device)


def loss_of(model, tokens, positions, targets):
    """Mean over all tokens of the losses of these."""
    logits = model(tokens, position_ids=positions, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum") / TOKENS


def main():
    device = join()
    model = load(sys.argv[1] if len(sys.argv) > 1 else None, device)
    transformers.register_attention()
    model.set_attn_implementation("shingle")
    whole = copy.deepcopy(model)
    text = torch.randint(0, 256, (1, TOKENS + 1), generator=torch.Generator().manual_seed(1)).to(device)
    tokens, targets = text[:, :-1].clone(), text[:, 1:].clone()
    positions = torch.arange(TOKENS, device=device)[None]
    expected = loss_of(whole, tokens, positions, targets)
    expected.backward()

    buffers = [tokens, positions, targets]
    with st.context_parallel(buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=buffers):
        loss = loss_of(model, tokens, positions, targets)
        loss.backward()
    loss = loss.detach()
    dist.all_reduce(loss)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    pairs = list(zip(model.parameters(), whole.parameters()))
    error = max(((a.grad - b.grad).norm() / b.grad.norm()).item() for a, b in pairs)
    assert abs(loss.item() - expected.item()) < 1e-2 * expected.item(), (loss, expected)
    assert error < 2e-2, error
    say(f"{tokens.shape[1]} of {TOKENS} tokens a rank: loss {loss.item():.4f}, on one rank {expected.item():.4f}; "
        f"gradients differ by {error:.1e}")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
