"""What both servers compute for the experts of a rank, with the roundings of their kernels."""


def weighted_sums(x, w13, w2, topk_weights, topk_ids):
    """Sums over the choices of tokens x, of slices w13 [experts, 2·inner, hidden] and w2 [experts, hidden, inner]."""
    import torch
    import torch.nn.functional as F

    out = torch.zeros(x.shape, dtype=torch.float32)
    for token, (weights, chosen) in enumerate(zip(topk_weights.tolist(), topk_ids.tolist())):
        for weight, expert in zip(weights, chosen):
            if expert >= 0:
                gate, up = F.linear(x[token], w13[expert]).chunk(2)
                out[token] += (weight * F.linear(F.silu(gate) * up, w2[expert]).float()).to(x.dtype)
    return out.to(x.dtype)
