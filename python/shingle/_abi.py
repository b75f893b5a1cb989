"""The C interface (include/shingle/shingle.h) in ctypes: structs, enumerators and functions.

The header documents meaning, shapes and units. tests/python/test_abi.py compares this file with the header.

`libshingle.so` is the one beside this file. The environment variable SHINGLE_LIBRARY names another, such as that of a
development build: SHINGLE_LIBRARY=build/host/src/shared/libshingle.so.
"""

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p

from . import errors

STATUS_ERRORS = {
    1: errors.InvalidArgument,
    2: errors.Unsupported,
    3: errors.Timeout,
    4: errors.IoError,
    5: errors.CudaError,
    6: errors.NcclError,
    7: errors.MpiError,
    8: errors.OutOfMemory,
    9: errors.InternalError,
}
DTYPES = {"f32": 0, "bf16": 1, "f16": 2, "i32": 3}
ROLES = {
    "a": 0, "b": 1, "bias": 2, "residual": 3, "norm_weight": 4, "keys": 5, "values": 6, "down": 7, "out": 8, "sum": 9,
    "grad": 10, "attended": 11, "lse": 12, "keys_grad": 13, "values_grad": 14,
    "topk_weights": 15, "out_lse": 16, "topk_ids": 17, "dropped": 18, "counts": 19,
}  # fmt: skip

INTEGERS = {c_int32: "32 bits", c_int64: "64 bits"}

Allgather = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, c_void_p, c_void_p, c_size_t)
Log = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Struct(ctypes.Structure):
    """A struct of the header. Its first field holds its size; all others are 0 if not given."""

    def __init__(self, **fields):
        kinds = dict(self._fields_)
        for name, value in fields.items():
            if name not in kinds:
                known = ", ".join(list(kinds)[1:])
                raise errors.InvalidArgument(f"unknown field {name!r}; expected one of {known}")
            if isinstance(value, int) and kinds[name] in INTEGERS and kinds[name](value).value != value:
                raise errors.InvalidArgument(f"{name} = {value} does not fit into {INTEGERS[kinds[name]]}")
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class WorldOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("backend", c_char_p),
        ("link", c_char_p),
        ("timeout_us", c_double),
        ("ranks", c_int32),
        ("workers_per_rank", c_int32),
        ("allgather", Allgather),
        ("user", c_void_p),
        ("communicators", POINTER(c_void_p)),
        ("communicator_count", c_int32),
        ("rank", c_int32),
        ("device", c_int32),
        ("reserved", c_int32),
    ]


class ContextOptions(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mechanism", c_char_p),
        ("arena_bytes", c_int64),
        ("most_plans", c_int64),
        ("timeout_us", c_double),
        ("verify", c_int32),
        ("workers", c_int32),
        ("registered_bytes", c_int64),
    ]


class Operator(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_char_p),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("inner", c_int64),
        ("activation", c_char_p),
        ("norm_epsilon", c_double),
        ("row_block", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("dtype", c_int32),
        ("transpose_a", c_int32),
        ("transpose_b", c_int32),
        ("bias", c_int32),
        ("norm", c_int32),
        ("residual", c_int32),
        ("causal", c_int32),
        ("row_order", c_int32),
        ("mechanism", c_char_p),
        ("experts", c_int32),
        ("topk", c_int32),
        ("returns_lse", c_int32),
        ("capacity", c_int32),
        ("scale", c_double),
        ("m_step", c_int64),
        ("f32_sums", c_int32),
        ("workers", c_int32),
    ]


class Matrix(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("row_stride", c_int64),
        ("rank", c_int32),
        ("role", c_int32),
        ("dtype", c_int32),
        ("reserved", c_int32),
    ]


class Routing(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rows", POINTER(c_int64)),
        ("destinations", POINTER(POINTER(c_int32))),
        ("experts", c_int32),
        ("reserved", c_int32),
    ]


class Arguments(Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("matrices", POINTER(Matrix)),
        ("streams", POINTER(c_void_p)),
        ("routing", POINTER(Routing)),
        ("matrix_count", c_int32),
        ("stream_count", c_int32),
        ("lengths", POINTER(c_int64)),
        ("length_count", c_int64),
    ]


STRUCTS = {
    "shingle_world_options": WorldOptions,
    "shingle_context_options": ContextOptions,
    "shingle_operator": Operator,
    "shingle_matrix": Matrix,
    "shingle_routing": Routing,
    "shingle_arguments": Arguments,
}

# Result and parameters of each function. Handles are void pointers. A function that returns STATUS can fail.
STATUS = c_int32
FUNCTIONS = {
    "shingle_status_name": (c_char_p, c_int32),
    "shingle_last_error": (c_char_p,),
    "shingle_version": (c_char_p,),
    "shingle_commit": (c_char_p,),
    "shingle_info": (STATUS, POINTER(c_char_p)),
    "shingle_set_log": (None, Log, c_void_p),
    "shingle_world_create": (STATUS, POINTER(WorldOptions), POINTER(c_void_p)),
    "shingle_world_destroy": (None, c_void_p),
    "shingle_world_size": (STATUS, c_void_p, POINTER(c_int32)),
    "shingle_world_local_ranks": (STATUS, c_void_p, POINTER(c_int32), POINTER(c_int32)),
    "shingle_context_create": (STATUS, c_void_p, POINTER(ContextOptions), POINTER(c_void_p)),
    "shingle_context_destroy": (None, c_void_p),
    "shingle_context_declare": (STATUS, c_void_p, POINTER(Operator), POINTER(c_int32)),
    "shingle_context_call": (STATUS, c_void_p, c_int32, c_int64, POINTER(Arguments)),
    "shingle_context_gathered": (STATUS, c_void_p, c_int32, POINTER(c_void_p)),
    "shingle_context_gathers_in_order": (STATUS, c_void_p, c_int32, c_int64, POINTER(c_int32)),
    "shingle_context_extend": (STATUS, c_void_p, POINTER(c_void_p), c_int32),
    "shingle_context_synchronize": (STATUS, c_void_p),
    "shingle_context_allocate": (STATUS, c_void_p, c_int32, c_int64, POINTER(c_void_p)),
    "shingle_context_release": (STATUS, c_void_p, c_void_p),
    "shingle_context_plug": (STATUS, c_void_p),
    "shingle_plugged_malloc": (c_void_p, c_ssize_t, c_int, c_void_p),
    "shingle_plugged_free": (None, c_void_p, c_ssize_t, c_int, c_void_p),
    "shingle_context_arena_bytes": (STATUS, c_void_p, POINTER(c_int64)),
    "shingle_arena_bytes_needed": (
        STATUS, POINTER(WorldOptions), POINTER(ContextOptions), POINTER(Operator), POINTER(c_int64),
    ),
    "shingle_context_plan_json": (STATUS, c_void_p, c_int32, c_int64, POINTER(c_char_p)),
    "shingle_context_mechanism": (STATUS, c_void_p, c_int32, c_int64, POINTER(c_char_p)),
}  # fmt: skip


def library_path():
    """Path of libshingle.so: SHINGLE_LIBRARY, else the one of this package."""
    return os.environ.get("SHINGLE_LIBRARY") or str(pathlib.Path(__file__).parent / "libshingle.so")


@functools.cache
def library():
    """The loaded library. Raises Unsupported if it cannot be loaded."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise errors.Unsupported(
            f"cannot load {path}: {error}; install the wheel, or set SHINGLE_LIBRARY to a build's libshingle.so"
        ) from error
    for name, (result, *parameters) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, parameters
    return loaded


def check(status):
    """Raises the exception of a status other than SHINGLE_OK, with the text of shingle_last_error()."""
    if status != 0:
        text = library().shingle_last_error().decode(errors="replace")
        raise STATUS_ERRORS.get(status, errors.InternalError)(text)


def encoded(text):
    """A string for a field of type const char*; None stays None."""
    return None if text is None else text.encode()
