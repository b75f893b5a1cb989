"""Processes of a gloo group that run functions of tests. They start once for each number of ranks."""

import datetime
import multiprocessing
import os
import socket
import traceback

DEADLINE_S = 120


def serve(pipe, rank, size, port):
    """Runs the functions that arrive in this process."""
    import torch
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=60))
    while (work := pipe.recv()) is not None:
        function, args = work
        try:
            torch.manual_seed(0)
            answer = True, function(*args)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send(answer)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Ranks:
    """`size` processes. A call that fails or hangs ends them."""

    def __init__(self, size):
        context, port = multiprocessing.get_context("spawn"), free_port()
        self.size, self.pipes, self.processes = size, [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, rank, size, port), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function, *args):
        """Calls a module-level function on all ranks. Returns the results; raises AssertionError with all failures."""
        failures, results = [], []
        for pipe in self.pipes:
            pipe.send((function, args))
        for rank, pipe in enumerate(self.pipes):
            try:
                passed, result = pipe.recv() if pipe.poll(DEADLINE_S) else (False, f"no answer within {DEADLINE_S} s")
            except EOFError:
                passed, result = False, "the process ended"
            results.append(result)
            if not passed:
                failures.append(f"rank {rank}: {result}")
        if failures:
            self.stop()
            raise AssertionError("\n".join(failures))
        return results

    def stop(self):
        for process in self.processes:
            process.terminate()
        self.processes = []


_running = {}


def on_ranks(size, function, *args):
    """Runs a module-level function on `size` ranks, which stay for the next test."""
    ranks = _running.get(size)
    if ranks is None or not ranks.processes:
        _running[size] = ranks = Ranks(size)
    return ranks.run(function, *args)
