"""Worlds and contexts of the C interface, without any framework: matrices are addresses, streams are handles.

    world = World(backend="host", ranks=2)
    context = Context(world)
    op = context.declare("gemm+allreduce", m=128, n=2, k=4)           # m is the largest m of a call
    call = op.prepare([(rank, role) for rank in (0, 1) for role in ("a", "b", "out")])
    call(m, [(address, rows, row_stride), ...])                       # one entry for each prepared matrix
    context.synchronize()

`prepare` builds the C structs once. A call writes addresses, rows and strides into them.
"""

import ctypes
import itertools
import threading

from . import _abi, errors

DTYPES = ("f32", "bf16", "f16")  # of operators
# Types of the matrices that are not of the operator's type.
OTHER_DTYPES = {
    "lse": "f32", "out_lse": "f32", "topk_weights": "f32", "topk_ids": "i32", "dropped": "i32", "counts": "i32",
}  # fmt: skip
WORD = ctypes.sizeof(ctypes.c_int64)
DATA, ROWS, ROW_STRIDE = (
    getattr(_abi.Matrix, field).offset // WORD for field in ("data", "rows", "row_stride")
)  # fmt: skip


class World:
    """The ranks that work together.

    backend: "host", "cuda", "mpi", or None for the default. ranks: number of ranks; 0: the backend's default.
    timeout_us: deadline of waits outside calls, in microseconds; 0: 30 s. link: link that host ranks emulate.

    allgather: makes a world of the processes of a group. It takes the bytes of this rank and returns the bytes of all
    ranks, joined in order of rank; then `ranks` is the size of the group, `rank` the rank of this process and `device`
    the number of its GPU. Called only here. An exception of `allgather` passes to the caller.

    Collective if the ranks are processes. Raises InvalidArgument or Unsupported.
    """

    def __init__(self, *, backend=None, ranks=0, timeout_us=0, link=None, allgather=None, rank=0, device=0):
        library, handle, raised = _abi.library(), ctypes.c_void_p(), []

        def gather(_, own, everyones, size):
            try:
                joined = allgather(ctypes.string_at(own, size))
                if len(joined) != size * ranks:
                    raise ValueError(
                        f"allgather returned {len(joined)} bytes; expected {size} of each of {ranks} ranks"
                    )
                ctypes.memmove(everyones, joined, len(joined))
            except BaseException as error:  # must not leave a C callback
                raised.append(error)
                return 1
            return 0

        options = _abi.WorldOptions(
            backend=_abi.encoded(backend), link=_abi.encoded(link), timeout_us=timeout_us, ranks=ranks,
            allgather=_abi.Allgather(gather) if allgather else _abi.Allgather(), rank=rank, device=device,
        )  # fmt: skip
        status = library.shingle_world_create(options, ctypes.byref(handle))
        if raised:
            raise raised[0]
        _abi.check(status)
        self._handle = handle
        self.lock = threading.RLock()

    @property
    def handle(self):
        return _open(self._handle, "world")

    @property
    def size(self):
        """Number of ranks, on all processes."""
        size = ctypes.c_int32()
        _abi.check(_abi.library().shingle_world_size(self.handle, size))
        return size.value

    @property
    def local_ranks(self):
        """The ranks of this process, ascending."""
        ranks, count = (ctypes.c_int32 * self.size)(), ctypes.c_int32(self.size)
        _abi.check(_abi.library().shingle_world_local_ranks(self.handle, ranks, count))
        return list(ranks[: count.value])

    def close(self):
        """Releases the world. Contexts of it keep working."""
        handle, self._handle = self._handle, None
        _abi.library().shingle_world_destroy(handle)


class Context:
    """Operators that the ranks of a world call with any m up to a declared maximum.

    mechanism: mechanism and params of all operators, such as "fused"; None: the fastest predicted one.
    arena_bytes: least staging memory of a rank. most_plans: plans that are kept ready; 0: 64. timeout_us: deadline of
    every wait of a call; 0: 30 s. verify: prove each plan when it is made. workers: SMs that kernels of the context may
    hold while they wait; 0: all. registered_bytes: registered memory of each rank, which peers access directly; 0:
    none. With some, all matrices of calls must come from allocate(), at the same offset on all ranks.

    Collective if the ranks are processes. One thread at a time uses a world and its contexts: `lock`, which they share,
    is held during each call. Hold it to keep calls of other threads from coming between.
    """

    def __init__(self, world, *, mechanism=None, arena_bytes=0, most_plans=0, timeout_us=0, verify=False,
                 workers=0, registered_bytes=0):  # fmt: skip
        handle = ctypes.c_void_p()
        options = _abi.ContextOptions(
            mechanism=_abi.encoded(mechanism), arena_bytes=arena_bytes, most_plans=most_plans, timeout_us=timeout_us,
            verify=verify, workers=workers, registered_bytes=registered_bytes,
        )  # fmt: skip
        _abi.check(_abi.library().shingle_context_create(world.handle, options, ctypes.byref(handle)))
        self._handle = handle
        self.address = handle.value  # of the handle; 0 if it is closed
        self.world = world
        self.lock = world.lock

    @property
    def handle(self):
        return _open(self._handle, "context")

    def declare(self, op, *, m, dtype="f32", activation=None, mechanism=None, **fields):
        """Declares an operator with its largest m and returns it.

        op: "gemm+allreduce", … dtype: "f32", "bf16" or "f16". mechanism: with params, as "ring slices=2"; None: that of
        the context. The other fields are those of shingle_operator: n, k, inner, norm_epsilon, transpose_a,
        transpose_b, bias, norm, residual, heads, kv_heads, head_dim, causal, returns_lse, experts, topk, capacity,
        scale, m_step, f32_sums, workers, … Collective: all ranks declare the same operators in the same order. Raises
        InvalidArgument or Unsupported.
        """
        if dtype not in DTYPES:
            raise _abi.errors.InvalidArgument(f"dtype = {dtype!r} must be one of {', '.join(DTYPES)}")
        largest = _abi.Operator(
            op=_abi.encoded(op), m=m, dtype=_abi.DTYPES[dtype], activation=_abi.encoded(activation),
            mechanism=_abi.encoded(mechanism), **fields,
        )  # fmt: skip
        number = ctypes.c_int32()
        with self.lock:
            _abi.check(_abi.library().shingle_context_declare(self.handle, largest, number))
        return Operator(self, number.value, largest)

    def gathered(self, rank):
        """Address of the rows that the last call gathered, on a local rank: m×k, dense, in their order.

        They lie in staging memory, complete when the call is, until the next call of this context begins. None if that
        call was not an allgather+gemm for which gathers_in_order() holds.
        """
        rows = ctypes.c_void_p()
        _abi.check(_abi.library().shingle_context_gathered(self.handle, rank, ctypes.byref(rows)))
        return rows.value

    def extend(self, streams):
        """Makes the next call wait for the work that is on the streams so far, such as reads of gathered().

        streams: a cudaStream_t for each local rank.
        """
        handles = (ctypes.c_void_p * max(len(streams), 1))(*streams)
        with self.lock:
            _abi.check(_abi.library().shingle_context_extend(self.handle, handles, len(streams)))

    def synchronize(self):
        """Waits until all calls are done. Raises Timeout with the diagnosis if one has failed."""
        with self.lock:
            _abi.check(_abi.library().shingle_context_synchronize(self.handle))

    def allocate(self, rank, size):
        """Address of `size` bytes of a local rank's registered memory, aligned to 512 bytes.

        Ranks that allocate and release the same sizes in the same order get the same offsets, which a call compares.
        The memory ends with the context. Raises Unsupported if no free block is as large.
        """
        memory = ctypes.c_void_p()
        _abi.check(_abi.library().shingle_context_allocate(self.handle, rank, size, memory))
        return memory.value

    def release(self, memory):
        """Gives back memory of allocate(). All calls that use it must be done."""
        _abi.check(_abi.library().shingle_context_release(self.handle, memory))

    @property
    def arena_bytes(self):
        """Staging memory of each rank, in bytes."""
        size = ctypes.c_int64()
        _abi.check(_abi.library().shingle_context_arena_bytes(self.handle, size))
        return size.value

    def close(self):
        """Waits until all calls are done, then releases the context. Destroy graphs that hold its calls first."""
        with self.lock:
            handle, self._handle, self.address = self._handle, None, 0
            _abi.library().shingle_context_destroy(handle)


class Operator:
    """An operator of a context."""

    def __init__(self, context, number, largest):
        self.context, self.number, self.largest = context, number, largest

    @property
    def max_m(self):
        return self.largest.m

    def prepare(self, matrices, streams=0):
        """Returns a Call for matrices [(rank, role), …], and for that many streams (0, or the number of local ranks).

        role: "a", "b", "bias", "residual", "norm_weight", "keys", "values", "down", "out" or "sum";
        of attention-backward also "grad", "attended", "lse", "keys_grad" and "values_grad"; of allgather+attention with
        returns_lse also "out_lse"; of experts "topk_weights", with a capacity also "topk_ids", "dropped" and, of
        alltoall+grouped-gemm and allgather+grouped-gemm, "counts".
        """
        return Call(self, matrices, streams)

    def mechanism(self, m):
        """Name of the mechanism that serves calls with this m."""
        return self._text("shingle_context_mechanism", m)

    def gathers_in_order(self, m):
        """True if calls with this m leave the rows of Context.gathered()."""
        found = ctypes.c_int32()
        with self.context.lock:
            _abi.check(_abi.library().shingle_context_gathers_in_order(self.context.handle, self.number, m, found))
        return found.value != 0

    def plan_json(self, m):
        """The plan that serves calls with this m, as JSON. Makes the plan, so that the first call finds it ready."""
        return self._text("shingle_context_plan_json", m)

    def _text(self, function, m):
        text = ctypes.c_char_p()
        with self.context.lock:
            _abi.check(getattr(_abi.library(), function)(self.context.handle, self.number, m, ctypes.byref(text)))
            return text.value.decode()


class Call:
    """Calls of an operator on matrices whose ranks and roles are fixed. Addresses, rows and strides vary."""

    def __init__(self, op, matrices, streams=0):
        largest, self._context, self.number = op.largest, op.context, op.number
        self.matrices = (_abi.Matrix * len(matrices))()
        for at, (rank, role) in zip(self.matrices, matrices):
            at.struct_size = ctypes.sizeof(_abi.Matrix)
            other = "f32" if role == "out" and largest.f32_sums else OTHER_DTYPES.get(role)
            at.dtype = _abi.DTYPES[other] if other else largest.dtype
            at.rank, at.role, at.cols = rank, _abi.ROLES[role], columns(largest, role, op.context.world.size)
        # Calls write into the structs as words: setting fields costs twice as much.
        self._words = memoryview(self.matrices).cast("B").cast("q")
        self._at = [i * ctypes.sizeof(_abi.Matrix) // WORD for i in range(len(matrices))]
        self._streams = (ctypes.c_void_p * max(streams, 1))()
        self._lengths = self._routing = None  # of the last call; the routing's memory must stay
        self._arguments = _abi.Arguments(
            matrices=self.matrices, streams=self._streams if streams else None, matrix_count=len(matrices),
            stream_count=streams,
        )  # fmt: skip
        self.function = _abi.library().shingle_context_call
        self._reference = ctypes.byref(self._arguments)

    def __call__(self, m, matrices, streams=(), routing=None, lengths=None):
        """Enqueues one call and returns at once. All ranks make the same calls in the same order.

        matrices: (address, rows as stored, elements from a row to the next or 0 if dense) of each prepared matrix.
        streams: a cudaStream_t for each local rank. routing: a Routing, for operators with an all-to-all or experts and
        without a capacity; m is then 0. With a capacity, a rank's matrices of tokens may have fewer than m rows.
        lengths: tuple of the tokens of each sequence of an attention, m in all; None: one sequence. Each new one makes a
        plan. Raises InvalidArgument if a matrix does not fit; the call is then not made. Raises Timeout if an earlier
        call has failed.
        """
        context = self._context
        with context.lock:
            words = self._words
            for at, (data, rows, row_stride) in zip(self._at, matrices, strict=True):
                words[at + DATA], words[at + ROWS], words[at + ROW_STRIDE] = data, rows, row_stride
            for i, stream in enumerate(streams):
                self._streams[i] = stream
            if routing is not self._routing:
                self._arguments.routing, self._routing = routing and routing.pointer, routing
            if lengths != self._lengths:
                self._pack(lengths)
            if m >> 63:  # ctypes would wrap around
                raise errors.InvalidArgument(f"m = {m} is no number of rows")
            status = self.function(context.handle, self.number, m, self._reference)
            if status != 0:
                _abi.check(status)

    def _pack(self, lengths):
        arguments, self._lengths = self._arguments, lengths
        arguments.length_count = len(lengths or ())
        arguments.lengths = (ctypes.c_int64 * len(lengths))(*lengths) if lengths else None


class Routing:
    """Destinations of the rows of an all-to-all, or of tokens: `destinations[rank][row]`, of all ranks. Of
    grouped-gemm+allreduce and moe+allreduce only `destinations[0]`, because all ranks have the same tokens.

    experts: not 0 if destinations are experts, of this number. Row j · t + i of a rank with t tokens is then choice j
    of its token i.
    """

    def __init__(self, destinations, experts=0):
        for rank, to in enumerate(destinations):
            if to and not 0 <= min(to) <= max(to) < 1 << 31:
                raise errors.InvalidArgument(f"destinations[{rank}] has {min(to)} to {max(to)}; expected whole numbers from 0")
        tables = [(ctypes.c_int32 * len(to))(*to) for to in destinations]
        self._point(list(map(ctypes.addressof, tables)), list(map(len, tables)), experts, tables)

    @classmethod
    def in_memory(cls, addresses, rows, experts, owner):
        """The routing of int32 tables that are in memory: their addresses and numbers of rows, by rank.

        owner: keeps the memory, and is kept. The tables are read in each call, not copied.
        """
        made = cls.__new__(cls)
        made._point(addresses, rows, experts, owner)
        return made

    def _point(self, addresses, rows, experts, owner):
        self._owner, ranks = owner, len(rows)
        self._rows = (ctypes.c_int64 * ranks)(*rows)
        table = ctypes.POINTER(ctypes.c_int32)
        self._pointers = (table * ranks)(*(ctypes.cast(address, table) for address in addresses))
        self._struct = _abi.Routing(rows=self._rows, destinations=self._pointers, experts=experts)
        self.pointer = ctypes.pointer(self._struct)

    @classmethod
    def of_splits(cls, splits):
        """The routing of rows that are sorted by destination: splits[source][destination] rows."""
        for source, row in enumerate(splits):
            if min(row, default=0) < 0:
                raise errors.InvalidArgument(f"splits[{source}] = {list(row)}: a number of rows is negative")
        return cls([list(itertools.chain(*([to] * rows for to, rows in enumerate(row)))) for row in splits])


def columns(largest, role, ranks):
    """Columns of a matrix as stored, where operator and number of ranks give them."""
    swiglu = 2 if largest.activation == b"swiglu" else 1
    chains = largest.inner > 0
    b_cols = largest.inner * swiglu if chains else largest.n
    out = largest.n if chains else largest.n // swiglu
    if role == "b":
        return largest.k if largest.transpose_b else b_cols
    if role == "down":
        return largest.inner if largest.transpose_b else largest.n
    if role == "a" and largest.transpose_a:
        raise _abi.errors.Unsupported("transpose_a: the columns of A are the m of a call; not supported from Python")
    if role in ("lse", "out_lse"):
        return largest.heads
    if role in ("topk_weights", "topk_ids"):
        return largest.topk
    if role == "dropped":
        return 2
    if role == "counts":
        return largest.experts // (ranks if largest.op == b"alltoall+grouped-gemm" else 1)
    if role in ("keys", "values", "keys_grad", "values_grad"):
        return largest.kv_heads * largest.head_dim // (ranks if largest.op == b"attention+reducescatter" else 1)
    return {"a": largest.k, "bias": b_cols}.get(role, out)


def _open(handle, name):
    if not handle:
        raise _abi.errors.InvalidArgument(f"the {name} is closed")
    return handle
