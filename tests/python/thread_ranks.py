"""Ranks as threads of one process, with contexts of host ranks in place of CUDA's: copy engines without a GPU.

A context's call takes the matrices of all its local ranks. So the threads meet at each collective, and one of them
calls.
"""

import contextlib
import multiprocessing
import threading
import traceback
import types

DEADLINE_S = 120


class Meeting:
    """A call for which all ranks bring their arguments. The last one makes it for all."""

    def __init__(self, ranks):
        self.barrier = threading.Barrier(ranks, timeout=DEADLINE_S)
        self.brought = {}

    def bring(self, rank, arguments, call):
        self.brought[rank] = arguments
        if self.barrier.wait() == 0:
            call(dict(sorted(self.brought.items())))
            self.brought.clear()
        self.barrier.wait()


class OneRank:
    """A context as the thread of one rank has it."""

    lock = contextlib.nullcontext()  # the ranks' threads meet in calls

    def __init__(self, context):
        self.context = context

    def __getattr__(self, name):
        return getattr(self.context, name)

    def extend(self, streams):
        assert len(streams) == 1


class HostContexts:
    """Contexts of `ranks` host ranks, one for each purpose, in place of shingle.torch.contexts'."""

    def __init__(self, ranks):
        from shingle.context import World

        self.ranks, self.world, self.making = ranks, World(backend="host", ranks=ranks), threading.RLock()
        self.meeting, self.contexts, self.declared, self.heaps, self.shapes = Meeting(ranks), {}, {}, {}, []

    def context(self, purpose, registered_bytes=0):
        from shingle.context import Context

        with self.making:
            if purpose not in self.contexts:
                self.contexts[purpose] = Context(self.world, registered_bytes=registered_bytes, verify=True)
            return self.contexts[purpose]

    def find_context(self, group, device, purpose):
        from shingle.torch import contexts

        made = self.heaps.setdefault(
            (group.rank, purpose), types.SimpleNamespace(heap=None, address=None, in_graphs=False)
        )
        made.registered_bytes = contexts.reserved(group, device, purpose)
        made.context = OneRank(self.context(purpose, made.registered_bytes))
        return made

    def find_call(self, group, shape, m, device):
        return types.SimpleNamespace(
            served={}, mechanism=lambda rows: shape.mechanism.split()[0], context=OneRank(None)
        )  # fmt: skip

    def enqueue(self, group, shape, m, device, operands, routing=None):
        self.meeting.bring(group.rank, operands, lambda brought: self.call(shape, m, brought, routing))

    def call(self, shape, m, brought, routing):
        from shingle.torch import contexts
        from shingle.torch.choices import BUCKETS

        self.shapes.append((shape, m))
        context = self.context(contexts.purpose_of(shape))
        if (shape, m) not in self.declared:
            experts, topk = shape.experts or (0, 0)
            op = context.declare(
                shape.op, m=m, n=shape.n, k=shape.k, dtype=shape.dtype, f32_sums=shape.f32_sums, scale=shape.scale,
                transpose_b=shape.transpose_b and contexts.purpose_of(shape) == contexts.PRODUCTS,
                m_step=contexts.m_step_of(shape), mechanism=shape.mechanism, inner=shape.inner,
                activation=shape.activation, experts=experts, topk=topk, capacity=shape.capacity,
            )  # fmt: skip
            assert shape.op not in BUCKETS or op.mechanism(m) == "copy-engine"
            roles = [(rank, role) for rank in range(self.ranks) for role in contexts.roles(shape)]
            self.declared[shape, m] = op.prepare(roles)
        matrices = [argument for operands in brought.values() for argument, _ in operands]
        self.declared[shape, m](m if routing is None else 0, matrices, routing=routing)
        context.synchronize()


_starting, _started = threading.Lock(), []


def engines(ranks):
    """CPU tensors of this process take contexts of host ranks from now on. All threads get the same HostContexts."""
    import torch
    from host_contexts import host_matrix
    from shingle.torch import configure, contexts, overlapped, overlapped_gradients
    from shingle.torch.data_parallel import buckets

    with _starting:
        if not _started:
            host = HostContexts(ranks)
            buckets.takes_contexts = lambda device: True
            contexts.find_context, contexts.find_call = host.find_context, host.find_call
            overlapped.enqueue, overlapped.staged = host.enqueue, host_matrix
            stream = types.SimpleNamespace(wait_stream=lambda other: None, cuda_stream=0)
            overlapped_gradients.side_stream = torch.cuda.current_stream = lambda *index: stream
            torch.cuda.stream = lambda stream: contextlib.nullcontext()
            torch.cuda.is_current_stream_capturing = lambda: False
            configure(min_bucket_bytes=0)
            _started.append(host)
    return _started[0]


def serve(pipe, ranks, function, args):
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

    torch.set_num_threads(1)
    _install_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store, results, failures = dist.HashStore(), {}, []

    def run(rank):
        try:
            dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
            results[rank] = function(rank, *args)
        except BaseException:
            failures.append(f"rank {rank}: {traceback.format_exc()}")

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    pipe.send((failures, results))


def on_threads(ranks, function, *args):
    """Runs a module-level function(rank, *args) on threads of a new process. Returns the results by rank."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, ranks, function, args), daemon=True)
    process.start()
    theirs.close()
    try:
        failures, results = ours.recv() if ours.poll(2 * DEADLINE_S) else (["no answer"], {})
    except EOFError:
        failures, results = ["the process ended"], {}
    process.kill()
    if failures or len(results) != ranks:
        raise AssertionError("\n".join(failures) or f"only ranks {sorted(results)} of {ranks} finished")
    return results
