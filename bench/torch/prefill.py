#!/usr/bin/env python3
"""Prefill of a Llama of Transformers under its tp_plan, with Transformers' styles and Shingle's: tokens a second.

    export NCCL_NVLS_ENABLE=0 SHINGLE_LIBRARY=/path/to/libshingle.so
    torchrun --standalone --nproc-per-node 2 bench/torch/prefill.py --json prefill.json

The model is Llama-3 8B with random weights in bf16. Both ways share the weights: for each, the plan is applied to a
model on the meta device, which then takes them. Logits are compared with those of Transformers' styles. `--cpu` tries
the program with a tiny model, without GPUs. It needs transformers 5.24.
"""
import argparse
import os
import statistics

import torch
import torch.distributed as dist
from shingle import torch as st
from shingle.torch import transformers as shingle
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from record import join, quartiles, slowest_us, write_record

LLAMA_3_8B = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
              "num_key_value_heads": 8, "rope_theta": 500000.0, "max_position_embeddings": 131072}
TINY = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2}


def sharded(config, mesh, weights, device, dtype):
    """The model under its plan, with the local shards of `weights`, which the first model makes at random."""
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(dtype)
    plan, *_ = model._resolve_parallel_plans(DistributedConfig(tp_plan="auto", tp_size=mesh.size()))
    model = apply_tensor_parallelism(model, mesh, plan).to_empty(device=device).eval()
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config).to(device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if name not in weights:
                # A shard is drawn on its rank; a whole matrix alike on all.
                seed = hash_of(name) + (mesh.get_local_rank() if local.numel() < parameter.numel() else 0)
                generator = torch.Generator(device).manual_seed(seed)
                scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0
                noise = torch.randn(local.shape, generator=generator, device=device, dtype=torch.float32)
                weights[name] = (noise * scale + (0 if scale else 1)).to(dtype)
            local.copy_(weights[name])
    return model


def hash_of(name):
    return sum(ord(letter) * 31**i for i, letter in enumerate(name)) % (1 << 31)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="on CPU with gloo")
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    if args.cpu:
        dist.init_process_group("gloo")
        device, dtype = torch.device("cpu"), torch.float32
        args.tokens, args.layers = [16], 2
    else:
        join()
        device, dtype = torch.device("cuda", int(os.environ["LOCAL_RANK"])), torch.bfloat16
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    config = LlamaConfig(num_hidden_layers=args.layers, **(TINY if args.cpu else LLAMA_3_8B))
    config._attn_implementation = "sdpa"
    st.configure(max_m=max(args.tokens))
    weights = {}
    models = {"transformers": sharded(config, mesh, weights, device, dtype)}
    shingle.register()
    models["shingle"] = sharded(config, mesh, weights, device, dtype)
    rows = []
    with torch.no_grad():
        for tokens in args.tokens:
            ids = torch.randint(config.vocab_size, (1, tokens), device=device,
                                generator=torch.Generator(device).manual_seed(tokens))
            dist.broadcast(ids, 0)
            forward = {way: lambda model=model: model(ids, use_cache=False, logits_to_keep=1).logits
                       for way, model in models.items()}
            # As in use: the operators of a step are measured once, before it serves.
            logits = {way: call() for way, call in forward.items()}
            st.warmup(forward["shingle"])
            logits["shingle"] = forward["shingle"]()
            error = ((logits["shingle"] - logits["transformers"]).norm() / logits["transformers"].norm()).item()
            row = {"model": "tiny" if args.cpu else "llama-3-8b", "layers": args.layers, "tokens": tokens,
                   "world": mesh.size(), "difference": error}
            if not args.cpu:
                samples = {way: [] for way in forward}
                for _ in range(args.repeat):
                    for way, call in forward.items():
                        samples[way].append(slowest_us(call))
                row |= {f"{way}_{key}": value for way, of in samples.items() for key, value in quartiles(of).items()}
                row |= {f"{way}_tokens_per_s": tokens / statistics.median(of) * 1e6 for way, of in samples.items()}
            rows.append(row)
            if dist.get_rank() == 0:
                print(row, flush=True)
    if dist.get_rank() == 0:
        print({name: count for name, count in st.counters().items() if "." in name}, flush=True)
        if args.json:
            write_record(args.json, rows)
    st.release()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
