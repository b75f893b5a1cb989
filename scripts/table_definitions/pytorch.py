"""The ops for PyTorch, and calls of contexts, on GPUs."""

from .common import geomean, one, pick, table, us, values_of

OPS = ("allgather+gemm", "gemm+reducescatter", "gemm+allreduce")
RANGES = {"16 to 256": (16, 256), "704 to 1024": (704, 1024), "2048 to 3072": (2048, 3072), "5120 to 16384": (5120, 16384)}


def ratios(record, theirs, op, first, last):
    """Times of another way over those of Shingle's op, by shape."""
    shapes = {}
    for row in pick(record, op=op):
        if first <= int(row["m"]) <= last:
            shapes.setdefault((row["m"], row["n"], row["k"]), {})[row["timed"]] = us(row)
    return [times[theirs] / times["shingle"] for times in shapes.values() if theirs in times]


@table("torch-ops", "h200x2/torch_ops")
@table("torch-ops-4", "h200x4/torch_ops")
def torch_ops(record):
    """Speed-up over mm + NCCL (geometric mean, least), then over async-TP."""
    rows = []
    for op in OPS:
        cells = []
        for first, last in RANGES.values():
            found = [ratios(record, theirs, op, first, last) for theirs in ("sequential", "async_tp")]
            cells.append("; ".join(f"{geomean(of):.2f}, {min(of):.2f}" for of in found if of))
        rows.append([op, *cells])
    return ["", *(f"M = {name}" for name in RANGES)], rows


@table("torch-decode", "h200x2/torch_decode")
def torch_decode(record):
    sizes = values_of(record, "m")
    rows = []
    for op in OPS:
        found = [ratios(record, "sequential", op, int(m), int(m)) for m in sizes]
        rows.append([op, *(f"{geomean(of):.2f}, {min(of):.2f}" for of in found)])
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


@table("torch-few-rows", "h200x2/torch_few_rows")
@table("torch-few-rows-4", "h200x4/torch_few_rows")
def torch_few_rows(record):
    """Times of the best of PyTorch's ways and of Shingle's op, and the speed-up, in microseconds.

    Where FlashInfer was measured, its time and the speed-up over it follow.
    """
    sizes, rows = values_of(record, "m"), []
    for op in values_of(record, "op"):
        for k in values_of(record, "k"):
            cells = []
            for m in sizes:
                times = {row["timed"]: us(row) for row in pick(record, op=op, k=k, m=m)}
                if not times:
                    break
                ours, best = times["shingle"], min(times[name] for name in ("nccl", "one_shot", "two_shot"))
                cells.append(f"{best:.1f}, {ours:.1f}; {best / ours:.2f}")
                if theirs := times.get("flashinfer"):
                    cells[-1] += f"; {theirs:.1f}, {theirs / ours:.2f}"
            if cells:
                rows.append([op if k == "0" else f"{op}, K = {k}", *cells])
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


@table("torch-decode-layer", "h200x2/torch_decode_layer")
def torch_decode_layer(record):
    """Times of a layer by the best of PyTorch's ways and with Shingle's op, and the speed-up, in microseconds."""
    sizes, rows = values_of(record, "m"), []
    for model in values_of(record, "model"):
        cells = []
        for m in sizes:
            times = {row["timed"]: us(row) for row in pick(record, model=model, m=m)}
            best = min(times[name] for name in ("nccl", "one_shot", "two_shot"))
            cells.append(f"{best:.0f}, {times['shingle']:.0f}; {best / times['shingle']:.2f}")
        rows.append([model, *cells])
    return ["", f"M = {sizes[0]}", *sizes[1:]], rows


def hidden_cells(record, sizes, **of):
    """The exposed part of NCCL's time, how much of it the ops hide, and their time over that without communication."""
    for m in sizes:
        found = {row["timed"]: row for row in pick(record, m=m, **of)}
        row = found["shingle"]
        exposed, left = 100 * float(row["exposed"]), us(row) / us(found["without"])
        yield f"{exposed:.0f}%, {float(row['hidden']):.2f}; {left:.2f}"


@table("torch-layers", "h200x2/torch_layers", "h200x2/torch_layers_norm")
def torch_layers(record, normed):
    sizes = values_of(record, "m")
    return ["", *(f"M = {m}" for m in sizes)], [
        [f"{model}, {form}", *hidden_cells(of, sizes, model=model, form=form)]
        for model in values_of(record, "model")
        for form, of in (("reduce", record), ("norm", normed), ("sequence", record))
    ]


@table("torch-layers-4", "h200x4/torch_layers")
@table("torch-layers-training", "h200x2/torch_layers_training")
@table("torch-layers-training-4", "h200x4/torch_layers_training")
def torch_layers_of_one_model(record):
    sizes = values_of(record, "m")
    return ["", *(f"M = {m}" for m in sizes)], [
        [f"{record.notes['model']}, {form}", *hidden_cells(record, sizes, form=form)]
        for form in values_of(record, "form")
    ]


@table("ulysses-long", "h200x2/ulysses")
def ulysses(record):
    """Times of both ways and of the attention alone in milliseconds, and what is hidden of the exchange."""
    ways, sizes, rows = ("sequential", "shingle", "alone"), values_of(record, "m"), []
    for heads in values_of(record, "heads"):
        cells = []
        for m in sizes:
            found = {row["timed"]: row for row in pick(record, heads=heads, m=m)}
            times = ", ".join(f"{us(found[way]) / 1e3:.1f}" for way in ways)
            cells.append(f"{times}; {float(found['shingle']['hidden']):.2f}")
        one_of = pick(record, heads=heads)[0]
        mask = "causal" if one_of["causal"] == "yes" else "full"
        rows.append([f"{heads} heads, {one_of['kv_heads']} of K and V, {mask}", *cells])
    return ["", *(f"{int(m) // 1024 // int(record.notes['world'])}K tokens a rank" for m in sizes)], rows


@table("context-attention", "h200x2/context_attention", "h200x2/context_attention_128k")
@table("context-attention-4", "h200x4/context_attention")
def context_attention(*records):
    """Times of the all-gather, of the ring, and of the faster context_parallel, in milliseconds."""
    sizes, rows = [(record, m) for record in records for m in values_of(record, "m")], []
    for heads in values_of(records[0], "heads"):
        for backward in values_of(records[0], "backward"):
            cells = []
            for record, m in sizes:
                times = {row["timed"]: us(row) / 1e3 for row in pick(record, heads=heads, backward=backward, m=m)}
                theirs = min(of for name, of in times.items() if name.startswith("context_parallel"))
                cells.append(f"{times['sequential']:.1f}, {times['shingle']:.1f}, {theirs:.1f}")
            rows.append([f"{heads} heads{', with backward' if backward == 'yes' else ''}", *cells])
    return ["", *(f"{int(m) // 1024}K tokens" for _, m in sizes)], rows


@table("torch-prefill", "h100x2/torch_prefill")
@table("torch-prefill-4", "h200x4/torch_prefill")
def torch_prefill(record):
    """Tokens a second under both kinds of styles, and the speed-up."""
    rates = [[float(row[f"{way}_tokens_per_s"]) for way in ("transformers", "shingle")] for row in record.rows]
    cells = [f"{theirs / 1e3:.1f}, {ours / 1e3:.1f}; {ours / theirs:.2f}" for theirs, ours in rates]
    return ["thousands a second", *(f"{row['tokens']} tokens" for row in record.rows)], [["Llama-3 8B", *cells]]


@table("context-calls", "h200x2/context_calls", "h200x2/context_calls_registered")
def context_calls(unregistered, registered):
    """Host time of a known call and of a new m, and device time over that of a bound operator."""
    rows = []
    for mechanism in values_of(unregistered, "mechanism"):
        cells = []
        for op in ("gemm+allreduce", "gemm+reducescatter", "allgather+gemm"):
            times = {row["timed"]: us(row) for row in pick(unregistered, op=op, mechanism=mechanism)}
            if not times:
                cells.append("")
                continue
            other = {row["timed"]: us(row) for row in pick(registered, op=op, mechanism=mechanism)}
            more = [100 * (of["device"] / of["bound"] - 1) for of in (times, other)]
            cells.append(f"{times['back_to_back']:.0f}, {times['new_m']:.0f}; {more[0]:+.1f}%, {more[1]:+.1f}%")
        rows.append([mechanism, *cells])
    return ["µs; %", "gemm+allreduce", "gemm+reducescatter", "allgather+gemm"], rows


@table("fsdp-loop", "h200x2/torch_fsdp_loop", "h200x2/torch_fsdp_loop_sustained", "h200x4/torch_fsdp_loop")
def fsdp_loop(*records):
    """Milliseconds of an iteration, by the way that bytes go."""
    ways = {"none": "no communication", "nccl": "NCCL", "shingle": "engines"}
    rows = []
    for load, record in zip(("", ", sustained", ", four GPUs"), records):
        for tokens in values_of(record, "tokens"):
            times = {way: us(one(record, tokens=tokens, timed=way)) for way in ways}
            cells = [f"{time / 1e3:.1f}" for time in times.values()]
            rows.append([f"{tokens}{load}", *cells, f"{times['nccl'] / times['shingle']:.2f}"])
    return ["tokens", *ways.values(), "engines over NCCL"], rows


@table("fsdp-step", "h200x2/torch_fsdp_step", "h200x2/torch_fsdp_step_compiled")
def fsdp_step(*records):
    """Milliseconds of a training step, median and quartiles of the slowest rank."""
    rows = []
    for name, record in zip(("eager", "compiled"), records):
        for tokens in values_of(record, "tokens"):
            found = {way: one(record, tokens=tokens, timed=way) for way in ("nccl", "shingle")}
            cells = [
                f"{us(row) / 1e3:.0f} ({float(row['p25_us']) / 1e3:.0f}–{float(row['p75_us']) / 1e3:.0f})"
                for row in found.values()
            ]
            rows.append([f"{name}, {tokens}", *cells, f"{us(found['nccl']) / us(found['shingle']):.2f}"])
    return ["tokens", "NCCL", "engines", "engines over NCCL"], rows


@table("fsdp-loop-predicted", "predicted/fsdp_loop_h200x8")
def fsdp_loop_predicted(record):
    """Milliseconds of an iteration, by the way that bytes go."""
    ways = {"none": "no communication", "nccl": "NCCL", "shingle": "engines", "co-tuned": "co-tuned"}
    rows = []
    for tokens in values_of(record, "tokens"):
        times = {way: us(one(record, tokens=tokens, way=way), "predicted_us") for way in ways}
        rows.append([tokens, *(f"{time / 1e3:.1f}" for time in times.values()), f"{times['nccl'] / times['co-tuned']:.2f}"])
    return ["tokens", *ways.values(), "co-tuned over NCCL"], rows
