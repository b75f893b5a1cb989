"""Contexts of one host rank in place of CUDA's: the CUDA kernels of the ops then run without a GPU, on CPU tensors.

This checks what they pass (roles, shapes, strides, transposes) and how they choose; not streams.
"""

import contextlib
import ctypes
import os

import pytest
import torch
from shingle import _abi
from shingle.context import World
from shingle.torch import configure, contexts, overlapped, overlapped_attention, sequential, shapes

if not os.path.exists(_abi.library_path()):
    pytest.skip("no libshingle.so: set SHINGLE_LIBRARY", allow_module_level=True)

K, N = 8, 6


@contextlib.contextmanager
def host_ranks(capturing=False):
    """Contexts of one host rank in place of CUDA's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contexts, "make_world", lambda group, device: World(backend="host", ranks=1))
        patch.setattr(overlapped, "current_stream", lambda index: 0)
        patch.setattr(torch.cuda, "current_device", lambda: None)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        patch.setattr(overlapped, "enqueue", enqueue_and_wait)
        patch.setattr(overlapped, "staged", host_matrix)
        patch.setattr(shapes, "backward_takes_lse", lambda q, head_dim: True)
        configure(min_m=1, max_m=64, native=False, overlap_packed=False)
        yield
        contexts.release()


def enqueue_and_wait(*args, enqueue=overlapped.enqueue, **options):
    """Host ranks read the tensors later. CUDA's allocator orders their reuse; the CPU's does not."""
    enqueue(*args, **options)
    for made in contexts._contexts.values():
        made.context.synchronize()


def host_matrix(address, rows, columns, dtype):
    memory = (ctypes.c_char * (rows * columns * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns)


def results(kernel, *args):
    """Results of the overlapped and of the sequential kernel."""
    kernels = overlapped_attention if hasattr(overlapped_attention, kernel) else overlapped
    return getattr(kernels, kernel)(*args), getattr(sequential, kernel)(*args)


def close(got, expected, dense=True, bound=5e-2):
    flat = torch.utils._pytree.tree_leaves
    for g, e in zip(flat(got), flat(expected), strict=True):
        assert g.shape == e.shape and g.dtype == e.dtype and g.stride() == e.stride()
        assert g.is_contiguous() or not dense
        torch.testing.assert_close(g, e, atol=bound, rtol=bound)
