"""Linear layers whose weight gradient is accumulated in fp32, or computed later: for training loops such as Megatron's.

main_grad: if the weight has this attribute, its gradient is added there in fp32, `grad_added_to_main_grad` is set, and
autograd gets a gradient without content. Deferred: backward keeps what the gradient needs until `backward_dw()`.

These run in eager mode. Layers without either use the ops, which torch.compile traces.
"""

import torch

from . import functional  # noqa: F401  registers the ops
from . import overlapped, overlapped_gradients
from .groups import find_group

ops = torch.ops.shingle


class WeightGradients:
    """How a layer treats gradients of its weight. `deferred`: they wait for `compute()`."""

    def __init__(self, deferred=False):
        self.deferred, self._waiting = deferred, []

    def applies_to(self, weight):
        return self.deferred or getattr(weight, "main_grad", None) is not None

    def add(self, weight, grad, x):
        """Takes gradᵀ·x. Returns what backward returns for the weight."""
        if self.deferred:
            self._waiting.append((weight, grad, x))
            return None
        return self._finish(weight, grad, x)

    def compute(self):
        """Computes the deferred gradients into main_grad, or else into grad."""
        waiting, self._waiting = self._waiting, []
        for weight, grad, x in waiting:
            found = self._finish(weight, grad, x)
            if getattr(weight, "main_grad", None) is None:
                weight.grad = found if weight.grad is None else weight.grad + found

    def _finish(self, weight, grad, x):
        main_grad = getattr(weight, "main_grad", None)
        if main_grad is None:
            return (grad.t() @ x).to(weight.dtype)
        accumulate(main_grad, grad, x)
        if not hasattr(weight, "grad_added_to_main_grad"):
            return None
        weight.grad_added_to_main_grad = True
        # Lets hooks of the parameter run. They ignore the content, unless the weight asks for zeros.
        return (torch.zeros_like if getattr(weight, "zero_out_wgrad", False) else torch.empty_like)(weight)


def accumulate(total, grad, x):
    """total += gradᵀ·x. The product is not rounded to the dtype of x if total is fp32."""
    if total.dtype == x.dtype:
        total.addmm_(grad.t(), x)
    elif x.is_cuda:
        total.add_(torch.mm(grad.t(), x, out_dtype=total.dtype))
    else:
        total.addmm_(grad.t().to(total.dtype), x.to(total.dtype))


class ParallelLinear(torch.autograd.Function):
    """x·wᵀ + bias with one collective, on rows [m, k]. kind: "gather", "replicate", "scatter" or "reduce".

    gather: all_gather_gemm. replicate: replicated_gemm. scatter: gemm_reduce_scatter. reduce: gemm_all_reduce.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, kind, group, gradients):
        ctx.kind, ctx.group, ctx.gradients, ctx.has_bias = kind, group, gradients, bias is not None
        ctx.rows, ctx.dtype = x.shape[0], x.dtype
        owner = weight  # the parameter, which has main_grad
        if torch.is_autocast_enabled(x.device.type):
            x, weight = (of.to(torch.get_autocast_dtype(x.device.type)) for of in (x, weight))
        bias = None if bias is None else bias.to(x.dtype)
        ctx.save_for_backward(x, owner)
        if kind == "scatter":
            return ops.gemm_reduce_scatter(x, weight, group, bias)
        if kind == "reduce":
            return ops.gemm_all_reduce(x, weight, group, bias)
        if kind == "gather":
            ctx.rows *= find_group(group).size
            _, (out,) = ops.all_gather_gemm(x, [weight], group)
        else:
            out = ops.replicated_gemm(x, weight, group)
        return out if bias is None else out + bias

    @staticmethod
    def backward(ctx, grad):
        x, owner = ctx.saved_tensors
        weight = owner.to(x.dtype)
        wants_x, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        dx = dw = db = None

        def add(grad, x):
            nonlocal dw, db
            dw = ctx.gradients.add(owner, grad, x) if wants_weight else None
            db = grad.sum(0) if wants_bias else None

        keeps = ctx.gradients.deferred
        if ctx.kind == "scatter" and wants_x:
            dx = overlapped.gather_gemm(grad, weight.t(), ctx.group, ctx.rows, lambda rows: add(rows, x), keeps)
        elif ctx.kind == "scatter":
            add(ops.all_gather(grad, ctx.group, ctx.rows), x)
        elif ctx.kind == "reduce":
            dx = grad @ weight if wants_x else None
            add(grad, x)
        elif ctx.kind == "gather" and wants_x and wants_weight:
            group = find_group(ctx.group)
            dx = overlapped_gradients.scatter_gemm(grad, weight.t(), x, group, lambda rows: add(grad, rows), keeps)
        elif ctx.kind == "gather":
            dx = ops.gemm_reduce_scatter(grad, weight.t(), ctx.group) if wants_x else None
            add(grad, ops.all_gather(x, ctx.group, ctx.rows) if wants_weight else x)
        else:
            dx = ops.gemm_all_reduce(grad, weight.t(), ctx.group) if wants_x else None
            add(grad, x)
        return None if dx is None else dx.to(ctx.dtype), dw, db, None, None, None
