"""Calls that differ from an earlier call in addresses alone, by libshingle_torch.so.

A kernel of `overlapped` first asks `serve`. If all shapes, strides, dtypes, devices and other arguments equal those of
an earlier call, the checks and the choice of that call hold. libshingle_torch.so then allocates the results and calls
the context. Without the library, or if PyTorch lacks a function, Python serves every call.

The kernels of the ops stay in Python: PyTorch's C interface drops the exceptions of a Python kernel that C++ calls.
"""

import ctypes
import functools
import pathlib
import weakref

import torch
from torch.distributed.distributed_c10d import _world

from .. import _abi
from .counters import counts

UNKNOWN = -1  # no earlier call is like this one; other results are a shingle_status
MOST_INPUTS, MOST_OUTPUTS = 5, 2
MOST_KEYS = 4096  # each length of a prompt is a key of its own


class Call(ctypes.Structure):
    """The struct of python/native/remembered_calls.cpp."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("op", ctypes.c_int64),
        ("m", ctypes.c_int64),
        ("matrix_count", ctypes.c_int64),
        ("output_count", ctypes.c_int64),
        ("output_sizes", ctypes.c_int64 * 2 * MOST_OUTPUTS),
        ("matrices", _abi.Matrix * (MOST_INPUTS + MOST_OUTPUTS)),
    ]


definitions = torch.library.Library("shingle_native", "DEF")


def define(name, integers, results):
    """Defines an op whose kernels are in libshingle_torch.so. Returns its overload for each number of tensors.

    `_op` is what an OpOverload calls: one Python frame less.
    """
    overloads = {}
    for count in range(2, MOST_INPUTS + 1):
        tensors = ", ".join(f"Tensor t{i}" for i in range(count))
        definitions.define(f"{name}.of{count}({integers}, {tensors}) -> {results}")
        overloads[count] = getattr(getattr(torch.ops.shingle_native, name), f"of{count}")._op
    return overloads


call = define("call", "int calls, int context", "(Tensor, Tensor, int)")
remember_call = define("remember", "int calls, int call", "()")


@functools.cache
def library():
    """libshingle_torch.so beside libshingle.so; None if it cannot be loaded."""
    try:
        loaded = ctypes.CDLL(str(pathlib.Path(_abi.library_path()).with_name("libshingle_torch.so")))
    except OSError:
        return None
    loaded.shingle_torch_register.restype = ctypes.c_bool
    loaded.shingle_torch_register.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    loaded.shingle_torch_calls_create.restype = ctypes.c_void_p
    loaded.shingle_torch_calls_destroy.argtypes = [ctypes.c_void_p]
    return loaded


@functools.cache
def available(device_type):
    """True if calls on "cuda" or "cpu" can be served."""
    found = library()
    return found is not None and found.shingle_torch_register(device_type.upper().encode(), ctypes.sizeof(Call))


class Calls:
    """Earlier calls with one key, on one context. They differ in weights, strides, and whether a graph was captured."""

    def __init__(self, process_group, context, counter):
        self.process_group, self.context, self.counter = process_group, context, counter
        self.address = library().shingle_torch_calls_create()
        weakref.finalize(self, library().shingle_torch_calls_destroy, self.address)


_remembered: dict[tuple, Calls] = {}
forget = _remembered.clear  # for all that changes a choice or closes a context


def serve(key, inputs):
    """The two results of a call like an earlier one; the second is None if there is one. None: Python must serve it.

    key: the op, all arguments other than tensors, and the shape of x: sizes that run as mm + c10d are not looked up
    further. inputs: the tensors, in the order of contexts.roles.
    """
    found = _remembered.get(key)
    # destroy_process_group removes a group from pg_map. A new group may then have its name.
    if found is None or found.process_group not in _world.pg_map:
        return None
    context = found.context
    with context.lock:
        first, second, status = call[len(inputs)](found.address, context.address, *inputs)
    if status == UNKNOWN:
        return None
    counts[found.counter] += 1
    if status != 0:
        _abi.check(status)
    return first, second


def remember(key, inputs, outputs, process_group, counter, made, m, arguments):
    """Makes `serve` repeat a call. The caller holds the lock of the context since the call.

    outputs: the results. Those that are matrices of the call come first. made, m, arguments: the context.Call, and what
    it was called with.
    """
    if not available(inputs[0].device.type) or any(
        address != tensor.data_ptr() for (address, _, _), tensor in zip(arguments, (*inputs, *outputs))
    ):  # a matrix was copied for the call
        return
    found = _remembered.get(key)
    if found is None or found.process_group is not process_group:
        if len(_remembered) >= MOST_KEYS:
            forget()
        found = _remembered[key] = Calls(process_group, made.context, counter)
    if found.context is not made.context:  # the context of another device
        return
    like = Call(
        function=ctypes.cast(made.function, ctypes.c_void_p), op=made.number, m=m, matrix_count=len(arguments),
        output_count=len(outputs), output_sizes=tuple(tuple(output.shape) for output in outputs),
    )  # fmt: skip
    for i, (_, rows, row_stride) in enumerate(arguments):
        like.matrices[i] = made.matrices[i]
        like.matrices[i].rows, like.matrices[i].row_stride = rows, row_stride
    remember_call[len(inputs)](found.address, ctypes.addressof(like), *inputs)
