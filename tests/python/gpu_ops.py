#!/usr/bin/env python3
"""Checks the ops on GPUs against mm + NCCL: gpu_ops.py [--ranks N] [--only NAME,...] [--deadline SECONDS]

Starts N processes (default: one for each GPU, at least two) and gives them the GPUs in turn. On one GPU, NCCL is told
that the processes are on different hosts, because it refuses two ranks on a GPU. Each rank runs all cases and prints a
line for each. Every case has a deadline. Exits 1 if a case fails on a rank. SHINGLE_LIBRARY names libshingle.so.
"""

import argparse
import datetime
import faulthandler
import gc
import os
import pathlib
import subprocess
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "python")]
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from on_gpus import CASES  # noqa: E402
from ranks import free_port  # noqa: E402
from shingle import torch as st  # noqa: E402

CASE_DEADLINE_S = 200


def start_ranks(args):
    """The parent: starts a process for each rank, and stops them all at the deadline."""
    gpus = torch.cuda.device_count()
    if gpus == 0:
        print("gpu_ops: no GPU")
        return 77
    ranks, port, processes = args.ranks or max(gpus, 2), free_port(), []
    for rank in range(ranks):
        variables = {"RANK": rank, "LOCAL_RANK": rank % gpus, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "NCCL_NVLS_ENABLE": 0, "OMP_NUM_THREADS": 2}  # fmt: skip
        if ranks > gpus:
            variables |= {"NCCL_HOSTID": f"h{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
                          "NCCL_IB_DISABLE": 1}  # fmt: skip
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        processes.append(
            subprocess.Popen([sys.executable, __file__, "--only", args.only, "--as-rank"], env=environment)
        )
    deadline, codes = time.monotonic() + args.deadline, []
    for rank, process in enumerate(processes):
        try:
            codes.append(process.wait(max(deadline - time.monotonic(), 1)))
        except subprocess.TimeoutExpired:
            print(f"rank {rank}: still running after {args.deadline} s", flush=True)
            codes.append(124)
            process.kill()
    print(f"gpu_ops: {ranks} ranks on {gpus} GPUs, exit codes {codes}: {'FAILED' if any(codes) else 'passed'}")
    return int(any(codes))


def run_cases(only):
    """A rank: runs the cases in order. After a failure the others are not tried, because ranks may have diverged."""
    rank, device = int(os.environ["RANK"]), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    faulthandler.dump_traceback_later(CASE_DEADLINE_S, exit=True)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=datetime.timedelta(seconds=60))
    for name, case in CASES.items():
        if only and name not in only:
            continue
        faulthandler.dump_traceback_later(CASE_DEADLINE_S, exit=True)
        begin = time.monotonic()
        torch.manual_seed(7)
        try:
            note = case()
            torch.cuda.synchronize()
        except BaseException:
            print(f"rank {rank}: {name} FAILED\n{traceback.format_exc()}", flush=True)
            os._exit(1)  # the process group may hang in its destructor
        print(
            f"rank {rank}: {name} passed in {time.monotonic() - begin:.1f} s{f': {note}' if note else ''}", flush=True
        )
    faulthandler.dump_traceback_later(CASE_DEADLINE_S, exit=True)
    if rank == 0:
        print("counters:", st.counters(), flush=True)
    torch._dynamo.reset()  # its CUDA graphs hold calls of contexts
    gc.collect()
    st.release()
    dist.barrier()
    dist.destroy_process_group()
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="processes; default: one for each GPU, at least 2")
    parser.add_argument("--only", default="", help=f"cases, joined by commas, of {', '.join(CASES)}")
    parser.add_argument("--deadline", type=float, default=540, help="seconds for all cases together")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    for name in only:
        if name not in CASES:
            parser.error(f"--only {name} is none of {', '.join(CASES)}")
    return run_cases(only) if args.as_rank else start_ranks(args)


if __name__ == "__main__":
    sys.exit(main())
