"""What the programs of this folder share: joining the ranks, timing a call, and a record for scripts/records.py."""
import ctypes
import json
import math
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
from shingle import _abi

WARM = 2  # turns that are not kept
SLEEP_CYCLES = 4_000_000  # longer than the host takes to launch a call


def join():
    """Joins the processes of torchrun, each with its GPU. Returns (rank, number of ranks, name of the group)."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    return dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name


def parsed(parser, repeat):
    """The arguments of a program that also runs on CPU, with those of every measurement: repeat, idle_ms, cpu, json."""
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument("--idle-ms", type=float, default=20)
    parser.add_argument("--cpu", action="store_true", help="on CPU with gloo")
    parser.add_argument("--json", help="file for the record")
    args = parser.parse_args()
    if args.cpu and args.json:
        parser.error("--json: times on CPU are no record; leave out --json or --cpu")
    return args


def join_on_any(args):
    """As join(), or on CPU with args.cpu. Returns (rank, device). Random numbers differ from rank to rank."""
    if args.cpu:
        dist.init_process_group("gloo")
    else:
        join()
    torch.manual_seed(dist.get_rank() + 1)
    return dist.get_rank(), torch.device("cpu" if args.cpu else f"cuda:{torch.cuda.current_device()}")


def require_close(result, reference, bound, what):
    error = ((result.float() - reference.float()).norm() / reference.float().norm()).item()
    assert error <= bound, (*what, error)


def times_of(row):
    """The medians of a row's ways, as text."""
    return ", ".join(f"{name} {at['median_us'] / 1e3:.2f} ms" for name, at in row.items() if isinstance(at, dict))


def slowest_us(call):
    """Device time of a call on the slowest rank, launched while the device sleeps.

    Hosts let go of a barrier tens of microseconds apart, and so devices wake: a sum of one element lets them meet.
    """
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    meeting = torch.zeros(1, device="cuda")
    dist.barrier()
    torch.cuda._sleep(SLEEP_CYCLES)
    dist.all_reduce(meeting)
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    us = torch.tensor([begin.elapsed_time(end) * 1e3], device="cuda")
    dist.all_reduce(us, op=dist.ReduceOp.MAX)
    return us.item()


def host_us(call):
    """Time of a call on the slowest rank, without a GPU."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    us = torch.tensor([(time.perf_counter() - begin) * 1e6])
    dist.all_reduce(us, op=dist.ReduceOp.MAX)
    return us.item()


def sampled(runs, args):
    """Quartiles of the times of several ways, which take turns, by name. args: repeat, idle_ms, cpu."""
    samples = {name: [] for name in runs}
    for turn in range(args.repeat + WARM):
        for name, run in runs.items():
            time.sleep(args.idle_ms / 1e3)
            us = host_us(run) if args.cpu else slowest_us(run)
            if turn >= WARM:
                samples[name].append(us)
    return {name: quartiles(taken) for name, taken in samples.items()}


def quartiles(samples):
    low, median, high = statistics.quantiles(samples, n=4)
    return {"median_us": median, "p25_us": low, "p75_us": high}


def mean_and_least(ratios):
    """The geometric mean and the least of speed-ups, as text."""
    return f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, least {min(ratios):.3f}"


def variables():
    """Variables of the environment that change what NCCL and CUDA do, as command_line() of src/base has them."""
    others = "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "CUDA_LAUNCH_BLOCKING"
    known = "NCCL_VERSION", "NCCL_RUNTIME_CONNECT" if os.environ.get("NCCL_RUNTIME_CONNECT") == "0" else ""
    return [f"{name}={value.rpartition('/')[2]}" for name, value in sorted(os.environ.items())
            if (name.startswith("NCCL_") or name in others) and name not in known]


def nccl_version():
    """Of the library in this process. torch.cuda.nccl.version() is that of the headers PyTorch was built with."""
    code = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(code))
    except OSError:  # PyTorch contains NCCL
        return ".".join(map(str, torch.cuda.nccl.version()))
    return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"


def write_record(path, rows, **settings):
    """Writes rows with command, machine and the commit of libshingle.so."""
    world = os.environ.get("WORLD_SIZE", "1")
    program = f"torchrun --nproc-per-node {world} bench/torch/{pathlib.Path(sys.argv[0]).name}"
    machine = f"{world} x {torch.cuda.get_device_name()}, NCCL {nccl_version()}, torch {torch.__version__}"
    record = {"command": " ".join((*variables(), program, *sys.argv[1:])),
              "commit": _abi.library().shingle_commit().decode(), "machine": {"gpu": machine},
              **settings, "rows": rows}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)


def used_bytes(device):
    """Device memory in use by this process and others, and what PyTorch has allocated."""
    if device.type == "cpu":
        return 0, 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free, torch.cuda.memory_allocated()
