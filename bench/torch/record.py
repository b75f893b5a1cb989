"""A record of a program of this folder, in the form of the programs in bench/, for scripts/records.py."""
import json
import os
import pathlib
import subprocess
import sys

import torch


def commit():
    """The commit of these sources, "-dirty" behind it if they were changed since; "unknown" outside a repository."""
    words = ["git", "-C", pathlib.Path(__file__).parent, "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_record(path, rows, **settings):
    """Writes rows with command, commit and machine."""
    world = os.environ.get("WORLD_SIZE", "1")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    record = {"command": f"torchrun --nproc-per-node {world} bench/torch/{pathlib.Path(sys.argv[0]).name} "
                         + " ".join(sys.argv[1:]),
              "commit": commit(),
              "machine": {"gpu": f"{world} x {torch.cuda.get_device_name()}, NCCL {nccl}, torch {torch.__version__}"},
              **settings, "rows": rows}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1)
