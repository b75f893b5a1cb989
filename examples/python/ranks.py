"""What every example does first: joins the processes of torchrun, on GPUs if there are any, else on CPU."""

import os

import torch
import torch.distributed as dist


def join():
    """Returns this rank's device."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device


def say(text):
    """Prints once, not on every rank."""
    if dist.get_rank() == 0:
        print(text, flush=True)
