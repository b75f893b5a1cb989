"""patch("symm_mem") on CPU: results against PyTorch's fallbacks, counters, undo and the warning."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.distributed as dist  # noqa: E402
from ranks import on_ranks  # noqa: E402
from shingle import errors  # noqa: E402
from shingle import torch as st  # noqa: E402

K, N = 8, 6


def has_cpu_kernel():
    return torch._C._dispatch_has_kernel_for_dispatch_key("symm_mem::fused_matmul_reduce_scatter", "CPU")


def patch_case():
    import torch.distributed._symmetric_memory as symmetric_memory

    group, ranks = dist.group.WORLD.group_name, dist.get_world_size()
    x, b = torch.randn(2 * ranks, 4 * ranks, K), torch.randn(K, N)
    before = st.counters()
    with st.patch("symm_mem", device="cpu") as patched:
        for dim in (0, 1):
            for op in ("sum", "avg"):
                got = torch.ops.symm_mem.fused_matmul_reduce_scatter(x, b, op, dim, group)
                expected = symmetric_memory._fused_matmul_reduce_scatter_fallback(x, b, op, dim, group)
                torch.testing.assert_close(got, expected, check_stride=True)
            got = torch.ops.symm_mem.fused_all_gather_matmul(x, [b, b + 1], dim, group)
            expected = symmetric_memory._fused_all_gather_matmul_fallback(x, [b, b + 1], dim, group)
            torch.testing.assert_close(got, expected, check_stride=True)
            missing, _ = torch.ops.symm_mem.fused_all_gather_matmul(x, [b], dim, group, return_A=False)
            assert missing is None
        assert patched.replaced == 8
    counted = {name: n - before.get(name, 0) for name, n in st.counters().items() if n > before.get(name, 0)}
    assert counted == {"symm_mem.fused_matmul_reduce_scatter": 4, "symm_mem.fused_all_gather_matmul": 4}
    assert not has_cpu_kernel()


def test_patch_replaces_and_restores():
    on_ranks(2, patch_case)


def test_a_patch_that_replaced_nothing_says_so(capfd):
    st.patch("symm_mem", device="cpu").undo()
    assert "WARNING: patch('symm_mem') replaced nothing" in capfd.readouterr().err


def test_bad_input():
    with pytest.raises(errors.InvalidArgument, match="'nccl'"):
        st.patch("nccl")
    with pytest.raises(errors.InvalidArgument, match="device = 'tpu'"):
        st.patch(device="tpu")
