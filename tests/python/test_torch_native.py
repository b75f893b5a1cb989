"""Calls that libshingle_torch.so serves, without a GPU: a context of one host rank, CPU tensors, no stream."""

import contextlib
import threading
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from host_contexts import K, N, close, host_ranks  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import _abi, errors  # noqa: E402
from shingle.torch import configure, contexts, native, overlapped, sequential, warmup  # noqa: E402
from shingle.torch.choices import LIBRARY, PREDICTED, Shape, table  # noqa: E402
from shingle.torch.warming import forced  # noqa: E402

if native.library() is None:
    pytest.skip("no libshingle_torch.so beside libshingle.so", allow_module_level=True)


class Calls:
    """Calls kernels on tensors of random numbers, and tells which calls Python served."""

    def __init__(self, patch):
        self.python, enqueue = 0, overlapped.enqueue
        patch.setattr(overlapped, "enqueue", lambda *args, **options: self.counted(enqueue, *args, **options))

    def counted(self, enqueue, *args, **options):
        self.python += 1
        enqueue(*args, **options)

    def by_python(self, kernel, *args):
        """Compares with mm + c10d. True if Python served the call."""
        before = self.python
        got = getattr(overlapped, kernel)(*args)
        wait()
        close(got, getattr(sequential, kernel)(*args))
        return self.python > before


def wait():
    """Host ranks write results later."""
    for made in contexts._contexts.values():
        made.context.synchronize()


@contextlib.contextmanager
def native_calls():
    with host_ranks(), pytest.MonkeyPatch.context() as patch:
        configure(native=True)
        yield Calls(patch)


def random(*sizes, dtype=torch.float32):
    return torch.randn(sizes).to(dtype)


def arguments(dtype=torch.float32, m=5):
    """Of each kernel, some that go without copies, with new numbers at new addresses."""

    def new(*sizes):
        return random(*sizes, dtype=dtype)

    x, w, bias = new(m, K), new(N, K), new(N)
    for rows in (x, new(m, 2 * K)[:, :K]):
        for weight in (w, new(K, N).t(), new(N, 2 * K)[:, :K]):
            yield "gemm_reduce_scatter", rows, weight, "0"
            yield "gemm_all_reduce", rows, weight, "0", bias
            yield "all_gather_gemm", rows, [weight], "0"
    yield "gemm_all_reduce", x, w, "0"
    yield "all_gather_gemm", x, [w], "0", m
    for activation in ("relu", "swiglu"):
        yield "gemm_reduce_scatter", x, w, "0", bias, activation
        yield "mlp", x, new(8, K), new(N, 4 if activation == "swiglu" else 8), "0", activation
    yield "gemm_all_reduce_norm", x, w, new(m, N), new(N), "0", bias, 1e-3
    yield "gemm_all_reduce_norm", x, w, new(m, 2 * N)[:, :N], new(N), "0"


def kernels_case():
    counts = overlapped.counts
    with native_calls() as calls:
        for dtype in (torch.float32, torch.bfloat16):
            for m in (5, 7):
                assert all(calls.by_python(*call) for call in arguments(dtype, m)), "each is new"
                before = counts.total()
                assert not any(calls.by_python(*call) for call in arguments(dtype, m))
                assert counts.total() - before == len(list(arguments())), "each is counted as before"
        # Matrices that are copied, or read after the call, and sizes that run as mm + c10d.
        x, w = random(5, K), random(N, K)
        for _ in range(2):
            assert calls.by_python("gemm_all_reduce", random(5, 2 * K)[:, ::2], w, "0")
            assert calls.by_python("gemm_all_reduce", x, random(N, 2 * K)[:, ::2], "0")
            assert calls.by_python("all_gather_gemm", x, [w, w], "0")
            assert calls.by_python("all_gather_gemm", x, [w], "0", None, True)
            assert calls.by_python("gemm_all_to_all", x, w, "0", [5])
            before = counts["sequential.gemm+allreduce"]
            assert not calls.by_python("gemm_all_reduce", random(65, K), w, "0")
            assert counts["sequential.gemm+allreduce"] == before + 1


def test_a_call_like_an_earlier_one_gives_the_same_results():
    on_ranks(1, kernels_case)


def forgetting_case():
    x, w = random(5, K), random(N, K)
    with native_calls() as calls, pytest.MonkeyPatch.context() as patch:

        def known():
            return not calls.by_python("gemm_all_reduce", x, w, "0")

        patch.setattr(table, "rows", {})
        assert not known() and known()
        configure(workers=0)
        assert not known() and known()
        table.enter(Shape("gemm+allreduce", N, K, "f32", 1), [(64, "chunked chunks=2")])
        assert not known() and known()
        with forced(PREDICTED):
            assert not known() and known()
        with forced(LIBRARY):
            before = overlapped.counts["sequential.gemm+allreduce"]
            known()
            assert overlapped.counts["sequential.gemm+allreduce"] == before + 1
        assert not known() and known()
        recorded = {}
        patch.setattr(overlapped, "used", recorded)
        native.forget()
        assert not known() and not known() and len(recorded) == 1, "warmup sees every call"
        patch.setattr(overlapped, "used", None)
        warmup(lambda: None)
        assert not known() and known()
        contexts.release()
        assert not known() and known()
        configure(native=False)
        assert not known() and not known()


def test_a_change_of_choices_forgets():
    on_ranks(1, forgetting_case)


def group_case():
    x, w = random(5, K), random(N, K)
    with native_calls() as calls:
        made = [dist.new_group([0]), dist.new_group([0])]
        names = [group.group_name for group in made]
        for name in names:
            assert calls.by_python("gemm_all_reduce", x, w, name)
            assert not calls.by_python("gemm_all_reduce", x, w, name)
        dist.destroy_process_group(made[0])
        with pytest.raises(errors.InvalidArgument, match="is no process group"):
            overlapped.gemm_all_reduce(x, w, names[0])
        assert not calls.by_python("gemm_all_reduce", x, w, names[1])
        contexts.release()
        dist.destroy_process_group(made[1])


def test_a_destroyed_group_is_not_called():
    on_ranks(1, group_case)


def errors_case():
    x, w = random(5, K), random(N, K)
    with native_calls() as calls:
        for _ in range(2):
            calls.by_python("gemm_all_reduce", x, w, "0")
            calls.by_python("all_gather_gemm", x, [w], "0")
        with pytest.raises(errors.InvalidArgument, match=r"w.shape = \(6, 9\); expected"):
            overlapped.gemm_all_reduce(x, random(N, K + 1), "0")
        with pytest.raises(errors.InvalidArgument, match="x has 3 dimensions"):
            overlapped.gemm_all_reduce(x[None], w, "0")
        with pytest.raises(errors.InvalidArgument, match="ws is empty"):
            overlapped.all_gather_gemm(x, [], "0")
        with pytest.raises(errors.InvalidArgument, match="bias.shape"):
            overlapped.gemm_all_reduce(x, w, "0", random(N + 1))
        # An error of the call has the class and the text of libshingle.so.
        (made,) = contexts._contexts.values()
        right = next(call for shape, call in made.calls.items() if shape.op == "gemm+allreduce")
        wrong = types.SimpleNamespace(
            function=right.function, matrices=right.matrices, number=99, context=right.context
        )
        key, out = ("gemm_all_reduce", "0", x.shape), torch.empty(5, N)
        matrices = [overlapped.rows_argument(matrix)[0] for matrix in (x, w, out)]
        native.remember(key, (x, w), (out,), made.group.process_group, "overlapped.gemm+allreduce", wrong, 5, matrices)
        with pytest.raises(errors.InvalidArgument) as raised:
            overlapped.gemm_all_reduce(x, w, "0")
        assert _abi.library().shingle_last_error().decode() == str(raised.value) != ""
        # So many other calls that the earliest are forgotten, those of a key and all keys.
        others = [(torch.empty(1, k), torch.empty(1, k)) for k in range(1, 300)]
        for inputs in others:
            native.remember(key, inputs, (), made.group.process_group, "", right, 1, ())
        assert calls.by_python("gemm_all_reduce", x, w, "0")
        for number in range(native.MOST_KEYS):
            native.remember((number,), others[0], (), made.group.process_group, "", right, 1, ())
        assert len(native._remembered) <= native.MOST_KEYS
        assert calls.by_python("gemm_all_reduce", random(5, K), random(N, K), "0")
        assert not calls.by_python("gemm_all_reduce", random(5, K), random(N, K), "0")
        made.context.close()
        with pytest.raises(errors.InvalidArgument, match="the context is closed"):
            overlapped.gemm_all_reduce(x, w, "0")


def test_errors_are_those_of_python():
    on_ranks(1, errors_case)


def threads_case():
    results = []

    def work():
        torch.manual_seed(threading.get_ident() % 2**32)
        for m in 3 * [4, 9, 16]:
            x, w = random(m, K), random(N, K)
            results.extend((overlapped.gemm_all_reduce(x, w, "0"), x, w) for _ in range(20))

    with native_calls() as calls:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait()
        assert calls.python <= 3 * len(threads) and len(results) == 180 * len(threads)
        for out, x, w in results:
            close(out, x @ w.t())


def test_threads_may_call_at_once():
    on_ranks(1, threads_case)


def op_case():
    x, w = random(5, K).requires_grad_(), random(N, K).requires_grad_()
    library = torch.library.Library("shingle", "IMPL")
    library.impl("gemm_all_reduce", overlapped.gemm_all_reduce, "CPU", allow_override=True)
    with native_calls() as calls:
        for served_by_python in (True, False, False):
            before = calls.python
            out = torch.ops.shingle.gemm_all_reduce(x, w, "0")
            wait()
            torch.testing.assert_close(out, x @ w.t())
            assert (calls.python > before) == served_by_python
            x.grad = w.grad = None
            out.sum().backward()
            torch.testing.assert_close(x.grad, w.sum(0).expand(5, K))
            torch.testing.assert_close(w.grad, x.sum(0).expand(N, K))
            with torch.inference_mode():
                inferred = torch.ops.shingle.gemm_all_reduce(x, w, "0")
                wait()
                assert inferred.is_inference()
    library._destroy()


def test_ops_keep_gradients():
    on_ranks(1, op_case)


def absent_case():
    with native_calls() as calls, pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        native.available.cache_clear()
        for _ in range(2):
            assert calls.by_python("gemm_all_reduce", random(5, K), random(N, K), "0")
    native.available.cache_clear()


def test_without_the_library_python_serves():
    on_ranks(1, absent_case)
