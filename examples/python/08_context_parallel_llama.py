#!/usr/bin/env python3
"""A Llama of Transformers on packed sequences whose tokens are sharded over the ranks (ring attention), as it is.

    torchrun --nproc-per-node 2 examples/python/08_context_parallel_llama.py [MODEL]

Without MODEL it makes a tiny Llama with random weights. It needs the packages transformers and accelerate. Logits, loss
and gradients are compared with those of each sequence by itself on one rank.
"""

import copy
import itertools
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import join, say
from shingle import torch as st
from shingle.torch import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

LENGTHS = [37, 3, 24]  # of the packed sequences; twice the ranks must divide their sum


def load(path, device):
    if path:
        return AutoModelForCausalLM.from_pretrained(path).to(device)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    return LlamaForCausalLM(config).to(device)


def logits_of(model, tokens, positions):
    return model(tokens, position_ids=positions, use_cache=False).logits.float()


def loss_of(logits, targets):
    """Mean over all tokens of the losses of these."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / sum(LENGTHS)


def main():
    device = join()
    model = load(sys.argv[1] if len(sys.argv) > 1 else None, device)
    transformers.register_attention()
    model.set_attn_implementation("shingle")
    alone = copy.deepcopy(model)
    text = torch.randint(0, 256, (1, sum(LENGTHS) + 1), generator=torch.Generator().manual_seed(1)).to(device)
    tokens, targets = text[:, :-1].clone(), text[:, 1:].clone()
    positions = torch.cat([torch.arange(length, device=device) for length in LENGTHS])[None]
    sequences = zip(tokens.split(LENGTHS, 1), positions.split(LENGTHS, 1))
    expected_logits = torch.cat([logits_of(alone, *sequence) for sequence in sequences], 1)
    expected = loss_of(expected_logits, targets)
    expected.backward()

    buffers, ends = [tokens, positions, targets], [0, *itertools.accumulate(LENGTHS)]
    with st.context_parallel(buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=buffers, cu_seqlens=ends):
        logits = logits_of(model, tokens, positions)
        loss = loss_of(logits, targets)
        loss.backward()
    (logits,), loss = st.context_parallel_unshard(None, [logits], [1]), loss.detach()
    dist.all_reduce(loss)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)

    def error(a, b):
        return ((a - b).norm() / b.norm()).item()

    of_logits = error(logits, expected_logits)
    of_gradients = max(error(a.grad, b.grad) for a, b in zip(model.parameters(), alone.parameters()))
    assert of_logits < 1e-2 and error(loss, expected) < 1e-2 and of_gradients < 2e-2, (of_logits, of_gradients)
    say(f"{tokens.shape[1]} of {sum(LENGTHS)} tokens a rank: loss {loss.item():.4f}, on one rank {expected.item():.4f}; "
        f"logits differ by {of_logits:.1e}, gradients by {of_gradients:.1e}")
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
