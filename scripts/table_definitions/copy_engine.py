"""Collectives by copy engines beside those of NCCL."""

from .common import one, pick, short, size, table, us, values_of


def fastest_copies(record, op, count):
    ours = [row for row in pick(record, op=op, bytes=count) if row["contender"] != "NCCL"]
    return us(one(record, op=op, bytes=count, contender="NCCL")), min(ours, key=us)


@table("copy-engine-2", "h200x2/copy_engine")
@table("copy-engine-4", "h200x4/copy_engine")
def copy_engine(record):
    """Microseconds of NCCL, then of the fastest variant. Last line: the rate of an all-gather by engines."""
    sizes = [2**16, 2**20, 2**22, 2**24, 2**26, 2**28, 2**30, 2**32]
    rows = []
    for op in ("allgather", "alltoall"):
        found = [fastest_copies(record, op, count) for count in sizes]
        rows.append([op, *(f"{short(nccl)}, {short(us(ours))}" for nccl, ours in found)])
    rates = [float(fastest_copies(record, "allgather", count)[1]["gbps_out"]) for count in sizes]
    rows.append(["allgather, GB/s out of each", *map(short, rates)])
    return ["", *map(size, sizes)], rows


@table("copy-engine-beside", "h200x2/copy_engine_beside")
def copy_engine_beside(record):
    rows = []
    for row in pick(record, bytes=2**29):
        name = f"{row['op']}, {'NCCL' if row['contender'] == 'NCCL' else 'engines'}"
        times = [f"{us(row, key):.0f}" for key in ("collective_us", "collective_beside_us")]
        rows.append([name, f"{100 * float(row['product_slowdown']):.0f}%", *times])
    return ["", "GEMM slows by", "collective alone, µs", "beside the GEMM, µs"], rows


@table("copy-engine-energy", "h200x2/copy_engine_energy")
@table("copy-engine-energy-4", "h200x4/copy_engine_energy")
def copy_engine_energy(record):
    """mJ in all, and beyond idle, by size."""
    sizes, rows = values_of(record, "bytes"), []
    for op in ("allgather", "alltoall"):
        for nccl in (False, True):
            found = [row for row in pick(record, op=op) if (row["contender"] == "NCCL") == nccl]
            cells = (f"{short(float(row['mj']))}, {short(float(row['beyond_idle_mj']))}" for row in found)
            rows.append([f"{op}, {'NCCL' if nccl else 'engines'}", *cells])
    return ["", *(size(int(count)) for count in sizes)], rows


@table("copy-engine-emulated", "epyc-2core/copy_engine")
def copy_engine_emulated(record):
    """The largest size at which each variant is the fastest."""
    rows = []
    for op in ("allgather", "alltoall"):
        for prelaunch in ("no", "yes"):
            case = {"op": op, "prelaunch": prelaunch}
            largest = {}
            for count in values_of(record, "bytes", **case):
                largest[min(pick(record, bytes=count, **case), key=us)["variant"]] = int(count)
            middle = largest.get("bcst", largest.get("swap"))
            assert largest.keys() <= {"b2b", "bcst", "swap", "pcpy"} and largest["b2b"] < middle < largest["pcpy"]
            name = op + (", prelaunched" if prelaunch == "yes" else "")
            rows.append([name, size(largest["b2b"]), size(middle), "beyond"])
    return ["", "`b2b`", "`bcst` or `swap`", "`pcpy`"], rows
