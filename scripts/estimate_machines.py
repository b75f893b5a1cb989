#!/usr/bin/env python3
"""Writes the profiles of machines that were not measured: estimate_machines.py [--check]

The inputs below are from datasheets and papers. Tiles and curves follow from the two models here, as the notes of each
profile say. --check changes nothing, and exits 1 if a profile differs from what would be written.
"""

import json
import math
import pathlib
import sys

# Curves: time = latency + wire / rate, rate = peak · sqrt(bytes / (bytes + HALF)). With the peaks and latencies of
# h200x8, the model is within 20% of its measured curves of 8 ranks with NCCL's choice of channels, from 4 MiB on.
# Below 4 MiB it is up to 50% too long.
HALF = 8 << 20
SIZES = [float(1 << e) for e in range(14, 31, 2)]  # 16 KiB to 1 GiB
TRAFFICS = {  # factors of the wire's bytes, of the peak and of the latency, as on h200x8
    "allreduce": (2, 1.0, 1.0),
    "reducescatter": (1, 0.90, 0.65),
    "allgather": (1, 0.93, 0.65),
    "alltoall": (1, 0.86, 0.70),
}
# Rate of a tile relative to the best one.
TILES = {(256, 256): 1.0, (128, 256): 1.0, (256, 128): 1.0, (128, 128): 0.92, (64, 128): 0.78}

NVIDIA = {
    "tile": (128, 256),
    "tiles": [(128, 256), (256, 128), (128, 128), (64, 128)],
    "launch_us": 4.0,
    "signal_us": 4.0,
    "phases": {"control_us": 2.0, "schedule_us": 4.0, "copy_us": 4.0, "sync_us": 4.0},
    "phases_note": "a link's rate; phases as assumed of h200x8",
    "half_chunk": 65536.0,
}
A100 = NVIDIA | {"workers": 108, "tflops": 312, "sustained": 0.83, "memory_share": 0.2}
A40 = NVIDIA | {
    "workers": 84,
    "tflops": 149.7,
    "sustained": 0.7,
    "memory_gbps": 696.0,
    "memory_share": 0.4,
    "misses": {"product": 0.17, "attention": 0.0, "pass": 0.0},
    "half_chunk": 131072.0,
    "slowdown": 0.05,
    "channels": [1, 2, 4, 8, 16, 32],
    "contention_note": "with chunks of 16 KiB 32 channels instead of 16 slow an FFN by about the 30% of Lagom's"
    " Figure 3, nearly all of it through the SMs they take (68 to 52); the rest is assumed: caches miss 17% of what"
    " tiles of a product read again, so that Phi-2's FFN waits for memory 40% of its time, and nothing of what"
    " attentions read again",
}

# link: rate and latency. peaks: bus bandwidth of an all-reduce, by ranks. channel: rate of one NCCL channel.
MACHINES = {
    "rtx4090x4-pcie": NVIDIA
    | {
        "workers": 128, "ranks": 4, "tflops": 330.3, "sustained": 0.8, "memory_gbps": 1008.0,
        "link": (24.0, 8.0), "peaks": {2: 16, 4: 14}, "latency": 40, "channel": 6, "taken": 4,
        "peer": False, "memory_share": 0.35, "channel_gbps": 6.0, "slowdown": 0.03,
        "link_note": "PCIe 4.0 x16 is 31.5 GB/s a direction; what is left of it through host memory is assumed",
        "peer_note": "no peer access on the tested server (FlashOverlap 6.1.3)",
        "tiles_note": "330 TFLOP/s with fp16 accumulation, as the paper counts; fp32 accumulation has half",
        "curves_note": "the peak is chosen so that 192 KB on 4 ranks reach 13% of it (FlashOverlap 3.2.2)",
        "origin": {"curves": "fitted", "peer_memory": "paper", "link": "assumed"},
    },
    "a800x8": A100
    | {
        "ranks": 8, "memory_gbps": 2039.0, "link": (200.0, 3.0), "peaks": {2: 150, 4: 155, 8: 160},
        "latency": 20, "channel": 22, "taken": 16, "channel_gbps": 29.0, "slowdown": 0.07,
        "link_note": "NVLink 3 of the A800: 400 GB/s for both directions, between any two GPUs (FlashOverlap 6.1.1);"
        " 6.4 confirms it: with four, less K gains more, so the all-reduce takes no longer than the GEMM",
        "curves_note": "the peaks are h800x8's, whose links are as fast",
        "origin": {"link": "paper"},
    },
    "a100x8-pcie": A100
    | {
        "ranks": 8, "memory_gbps": 1935.0, "link": (26.0, 6.0), "peaks": {2: 22, 4: 20, 8: 18},
        "latency": 40, "channel": 6, "taken": 8, "channel_gbps": 6.0, "slowdown": 0.03,
        "link_note": "PCIe 4.0 x16 is 31.5 GB/s a direction, of which peers reach 26 (assumed)",
        "origin": {"link": "assumed"},
    },
    "a100x8-nvlink": A100
    | {
        "ranks": 8, "memory_gbps": 2039.0, "link": (300.0, 3.0), "peaks": {2: 230, 4: 232, 8: 235},
        "latency": 20, "channel": 22, "taken": 24, "channel_gbps": 29.0, "slowdown": 0.07,
        "link_note": "NVLink 3: 600 GB/s for both directions, all pairs behind NVSwitch",
    },
    "h800x8": NVIDIA
    | {
        "workers": 132, "ranks": 8, "tflops": 989.4, "sustained": 0.78, "memory_gbps": 3350.0,
        "link": (200.0, 3.0), "peaks": {2: 150, 4: 155, 8: 160}, "latency": 20, "channel": 26, "taken": 16,
        "memory_share": 0.17, "channel_gbps": 30.0, "slowdown": 0.07, "persistent": True, "pass_gbps": 91.0,
        "link_note": "NVLink 4 of the H800: 400 GB/s for both directions, all pairs behind NVSwitch",
    },
    "a40x8-pcie": A40
    | {
        "ranks": 8, "link": (24.0, 8.0), "peaks": {2: 20, 4: 16, 8: 14}, "latency": 40, "channel": 5,
        "taken": 4, "channel_gbps": 5.0,
        "link_note": "PCIe 4.0 x16 (Lagom 4.1) is 31.5 GB/s a direction, of which 24 are reached (assumed)",
        "curves_note": "16 channels are as fast as 32 (Lagom 3.2)",
        "origin": {"link": "assumed"},
    },
    "a40x8-nvlink": A40
    | {
        "ranks": 8, "link": (50.0, 3.0), "peaks": {2: 46, 4: 44, 8: 42}, "latency": 30, "channel": 24,
        "taken": 8, "channel_gbps": 8.0,
        "link_note": "NVLink with 400 Gb/s between all (Lagom 4.1, cluster A)",
        "taken_note": "NCCL's default of 8 channels (Lagom 4.3)",
        "curves_note": "2 channels lose little against 8 (Lagom 4.3)",
        "contention_note": A40["contention_note"] + "; 2 channels of 684 KiB instead of 8 of 2 MiB gain 7% with"
        " this, where Lagom's pattern 1 gained 35%",
        "origin": {"link": "paper", "collective_workers": "paper"},
    },
    "mi300x8": {
        "workers": 304, "ranks": 8, "tflops": 1307.4, "sustained": 0.5, "memory_gbps": 5300.0,
        "link": (448.0, 3.0), "peaks": {2: 48, 4: 144, 8: 330}, "latency": 16, "channel": 13, "taken": 32,
        "tile": (256, 256), "tiles": [(256, 256), (128, 256), (128, 128)], "launch_us": 5.0, "signal_us": 1.2,
        "mesh": (64.0, 1.0), "engine_gbps": 101.0,
        "phases": {"control_us": 0.04, "schedule_us": 0.49, "copy_us": 2.17, "sync_us": 1.23, "fetch_us": 1.94,
                   "queued_us": 0.012, "poll_us": 4.07, "broadcast_us": 0.86, "swap_us": 0.25},
        "phases_note": "all at once on the shares of a copy's phases (DMA collectives 3.3), the best variants of"
        " Tables 1 and 2 and seven speedups of 5.3, in the simulator; bench/papers/dma.cpp holds what comes of it"
        " beside the paper's",
        "pair_note": "each GPU has a link of 64 GB/s a direction to each other (DMA collectives 2.4); the latency is"
        " assumed",
        "memory_share": 0.2, "channel_gbps": 31.0, "half_chunk": 65536.0, "slowdown": 0.07,
        "signal_note": "half of the sync phase of DMA collectives 3.2, in which the host sees an engine's report",
        "workers_note": "compute units",
        "link_note": "seven links of 64 GB/s a direction, one to each other GPU (DMA collectives 2.4)",
        "traffics": {"allgather": (1, 1.13, 0.27), "alltoall": (1, 1.31, 0.32)},
        "curves_note": "ranks use only the links between them; latency and peak of all-gathers and all-to-alls are"
        " fitted to RCCL's times beside parallel copies, below and above 32 MB (DMA collectives 5.3)",
        "origin": {"link": "paper", "topology": "paper", "engine": "fitted",
                   "curves": "fitted"},
    },
}  # fmt: skip


def collective(machine, traffic, ranks, workers):
    """Returns a curve. `workers` 0: NCCL's choice."""
    wire, of_peak, of_latency = machine.get("traffics", TRAFFICS).get(traffic, TRAFFICS[traffic])
    # The lower of the wire's and the channels' rates, with a smooth transition as measured on h200x8.
    peak = machine["peaks"][ranks] * of_peak
    if workers:
        peak = (peak**-4 + (workers * machine["channel"] * of_peak) ** -4) ** -0.25
    latency = machine["latency"] * of_latency * math.log2(ranks) / 3
    samples = []
    for size in SIZES:
        rate = peak * math.sqrt(size / (size + HALF))
        samples.append({"bytes": size, "us": round(latency + wire * (ranks - 1) / ranks * size / (rate * 1e3), 1)})
    return {"traffic": traffic, "ranks": ranks, "workers": workers, "samples": samples}


def tile(machine, rows, cols):
    """Returns a tile's times. The sustained rate bounds the main loop; writes to memory bound prologue and epilogue."""
    rate = machine["tflops"] * 1e6 * machine["sustained"] * TILES[rows, cols]
    return {
        "rows": rows,
        "cols": cols,
        "fixed_us": round(2 * rows * cols * machine["workers"] / (machine["memory_gbps"] * 1e3), 2),
        "us_per_k": round(2 * rows * cols * machine["workers"] / rate, 6),
    }


def notes(machine):
    """Returns the source of each figure: (origin, note) by key."""
    taken = machine.get("taken_note", "channels of the library")
    sustained = f"{machine['sustained']:.0%} of {machine['tflops']} TFLOP/s sustained, less for small tiles, and a" \
        " wave's results at memory's rate"
    model = "latency + bytes on the wire / rate, rate = peak * sqrt(bytes / (bytes + 8 MiB)), both assumed"
    said = {
        "workers": ("datasheet", machine.get("workers_note", "SMs")),
        "ranks": ("datasheet", "GPUs of one server"),
        "collective_workers": ("assumed", taken),
        "tile": ("assumed", "what large GEMMs take"),
        "link": ("datasheet", machine["link_note"] + "; the latency is assumed"),
        "engine": ("assumed", machine["phases_note"]),
        "peer_memory": ("datasheet", machine.get("peer_note", "peers read and write each other's memory")),
        "memory_gbps": ("datasheet", "rate on paper"),
        "launch_us": ("assumed", "a launch by the host"),
        "signal_us": ("assumed", machine.get("signal_note", "a kernel that spins; 3.6 us measured on h200x8")),
        "pass_gbps": ("assumed", "as measured on h200x8"),
        "topology": ("datasheet", machine.get("pair_note", "")),
        "contention": ("assumed", machine.get("contention_note", "all of it, in the order of what h200x8 showed")),
        "tiles": ("assumed", "; ".join(filter(None, [sustained, machine.get("tiles_note")]))),
        "curves": ("assumed", "; ".join(filter(None, [model, machine.get("curves_note")]))),
    }  # fmt: skip
    if "contention_note" in machine:
        said["contention"] = ("fitted", machine["contention_note"])
    for key, origin in machine.get("origin", {}).items():
        said[key] = origin if isinstance(origin, tuple) else (origin, said[key][1])
    return said


def link(pair):
    return {"gbps": pair[0], "latency_us": pair[1]}


def engine(machine):
    """Returns phases and rate in the order in which Shingle writes them."""
    phases = {"gbps": machine.get("engine_gbps", machine["link"][0]), **machine["phases"]}
    keys = ["control_us", "schedule_us", "copy_us", "gbps", "sync_us"]
    keys += ["fetch_us", "queued_us", "poll_us", "broadcast_us", "swap_us"]
    return {key: phases[key] for key in keys if key in phases}


def topology(machine):
    """Returns the links between pairs of ranks, or between all of them."""
    if "mesh" in machine:
        return {"pair": link(machine["mesh"]), "pair_ranks": machine["ranks"]}
    return {"pair": link(machine["pair"])} if "pair" in machine else None


def profile(name, machine):
    figures = {
        "workers": machine["workers"],
        "ranks": machine["ranks"],
        "collective_workers": machine["taken"],
        "tile": dict(zip(("rows", "cols"), machine["tile"])),
        "link": link(machine["link"]),
        "engine": engine(machine),
        "peer_memory": machine.get("peer", True),
        "memory_gbps": machine["memory_gbps"],
        "launch_us": machine["launch_us"],
        "signal_us": machine["signal_us"],
        "pass_gbps": machine.get("pass_gbps"),
        "topology": topology(machine),
        "contention": {"memory_share": machine["memory_share"], "channel_gbps": machine["channel_gbps"],
                       "chunk_bytes": machine["half_chunk"], "collective_slowdown": machine["slowdown"],
                       "persistent": machine.get("persistent", False),
                       **{f"{kind}_misses": part for kind, part in machine.get("misses", {}).items()}},
        "tiles": [tile(machine, *shape) for shape in machine["tiles"]],
        "curves": [collective(machine, traffic, ranks, workers)
                   for traffic in TRAFFICS
                   for ranks in machine["peaks"]
                   for workers in [*machine.get("channels", [4, 8, 16]), 0]],
    }  # fmt: skip
    figures = {key: value for key, value in figures.items() if value is not None}
    said = notes(machine)
    sources = [{"of": key, "origin": said[key][0], "note": said[key][1]} for key in figures]
    return {"format": "shingle-machine", "version": 1, "name": name, **figures, "sources": sources}


def text(figures):
    """Formats a profile as Shingle does: one line for each key and each list element."""

    def line(value):
        return json.dumps(value, separators=(",", ":"))

    def lines(value):
        if not isinstance(value, list):
            return line(value)
        return "[\n    " + ",\n    ".join(map(line, value)) + "\n  ]"

    return "{" + ",".join(f'\n  "{key}": {lines(value)}' for key, value in figures.items()) + "\n}\n"


def main(arguments):
    folder = pathlib.Path(__file__).parents[1] / "machines"
    stale = 0
    for name, machine in MACHINES.items():
        file, wanted = folder / f"{name}.json", text(profile(name, machine))
        if arguments == ["--check"]:
            if not file.exists() or file.read_text() != wanted:
                print(f"{file.name} is not what estimate_machines.py writes")
                stale = 1
        else:
            file.write_text(wanted)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
