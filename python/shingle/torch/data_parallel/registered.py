"""Registered memory of a context as tensors: peers store into it directly."""

import collections
import ctypes
import sys
import threading
import weakref
from typing import NamedTuple

import torch

ALIGNMENT = 512  # bytes


class Freed(NamedTuple):
    """Addresses [first, end) that a tensor has left, and the work that its stream still has on them."""

    first: int
    end: int
    stream: torch.cuda.Stream
    work: torch.cuda.Event


class Memory:
    """Bytes at an address, for torch.as_tensor. The tensor's storage keeps this object."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


def tensor_at(address, size, dtype, device):
    """A tensor over memory, without a copy, and the object that lives as long as its storage."""
    if device.type == "cuda":
        memory = Memory(address, size)
        return torch.as_tensor(memory, device=device).view(dtype), memory
    memory = (ctypes.c_char * size).from_address(address)
    return torch.frombuffer(memory, dtype=dtype), memory


class Heap:
    """Tensors in the registered memory of a context.

    As PyTorch's allocator does, it reuses memory in the order of streams. Ranks that make and drop the same tensors in
    the same order get the same offsets.

    FSDP2 has two buckets at a time. The next one goes to the end of the memory where the last one is not, so that any
    two that fit together find room, whatever was there before.
    """

    def __init__(self, context, rank, size):
        self.context, self.size, self.first = context, size, context.allocate(rank, size)
        self._used: dict[int, int] = {}  # bytes of the tensors, by address
        self.left = collections.deque()  # addresses that tensors have left, and the work on them: not in `freed` yet
        self.freed: list[Freed] = []
        self.lock = threading.Lock()

    @property
    def used(self):
        """Bytes of the tensors that are alive, by address."""
        with self.lock:
            self._collect()
            return dict(self._used)

    def empty(self, elements, dtype, device):
        """A flat tensor; None if there is no room."""
        stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        size = rounded_up(elements * dtype.itemsize)
        with self.lock:
            self._collect()
            address = self._place(size)
            if address is None:
                return None
            self._used[address] = size
            left = [at for at in self.freed if at.first < address + size and address < at.end]
            self.freed = [at for at in self.freed if at.first < address or address + size < at.end]
        for at in left:
            if at.stream != stream:
                stream.wait_event(at.work)
        tensor, memory = tensor_at(address, elements * dtype.itemsize, dtype, device)
        weakref.finalize(memory, self._give_back, address, stream).atexit = False
        return tensor

    def holds(self, tensor):
        """True if a tensor begins where one of this heap does."""
        return tensor.data_ptr() in self._used

    def _place(self, size):
        """Address of free memory; None if no gap is as large."""
        last, free = self.first, None
        for begin, end in sorted((at, at + taken) for at, taken in [*self._used.items(), (self.first + self.size, 0)]):
            if begin - last >= size and free is None:
                free = begin - size if last > self.first and begin == self.first + self.size else last
            last = end
        return free

    def _give_back(self, address, stream):
        """A tensor's finalizer. The garbage collector may call it anywhere, also under the lock: it takes none."""
        if sys.is_finalizing() or not self.context.address:  # a closed context has freed its memory
            return
        self.left.append((address, stream, None if stream is None else stream.record_event()))

    def _collect(self):
        while self.left:
            address, stream, work = self.left.popleft()
            size = self._used.pop(address)
            if stream is not None:
                self.freed.append(Freed(address, address + size, stream, work))


def rounded_up(size):
    """Bytes that a tensor takes: a multiple of what the largest loads need."""
    return -(-size // ALIGNMENT) * ALIGNMENT
