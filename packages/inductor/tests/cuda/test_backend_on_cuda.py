"""``backend="peakmem"`` on a CUDA device, or on the CUDA without hardware, where bytes are real and no kernel runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import peakmem_inductor
import pytest

TORCH = pytest.importorskip("torch", reason="torch is not installed (pip install 'peakmem-inductor[torch]')")
pytestmark = pytest.mark.skipif(not TORCH.cuda.is_available(), reason="torch finds no CUDA device here")


def branches(torch: Any) -> Any:
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ModuleList(nn.Linear(64, 512) for _ in range(4))
            self.down = nn.ModuleList(nn.Linear(512, 64) for _ in range(4))

        def forward(self, x: Any) -> Any:
            wide = [torch.nn.functional.gelu(u(x)) for u in self.up]
            y = torch.stack([d(w) for d, w in zip(self.down, wide)]).mean(0)
            return torch.nn.functional.dropout(y, 0.25, self.training)

    return Net().cuda()


@pytest.mark.parametrize("pool", [False, True])
def test_bytes_are_as_predicted_and_bits_equal_where_there_are_any(torch: Any, pool: bool) -> None:
    from peakmem_inductor.backend import peakmem
    from peakmem_inductor.devices import computes

    net, x = branches(torch), torch.randn(256, 64, device="cuda")

    def gradients(backend: Any) -> list[Any]:
        torch._dynamo.reset()
        compiled = torch.compile(net, backend=backend)
        found = []
        for _ in range(4):
            net.zero_grad()
            torch.manual_seed(3)
            compiled(x).sum().backward()
            found += [p.grad.clone() for p in net.parameters()]
        return found

    want = gradients("inductor")
    got = gradients(partial(peakmem, options={"pool": pool}))
    rows = peakmem_inductor.report()
    assert [r.name.partition("_")[2] for r in rows] == ["forward", "backward"]
    assert {r.state for r in rows} <= {"permuted", "kept", "pooled"}
    if pool:
        assert [r.state for r in rows] == ["pooled", "pooled"]
    for row in rows:
        assert row.measured == row.after
        if row.state == "kept":
            continue
        if computes("cuda:0"):
            assert row.identical
        else:
            assert row.identical is None
            assert "not compared: cuda:0 runs no kernels" in str(rows)
    if computes("cuda:0"):
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


def test_a_call_needs_what_was_predicted(torch: Any) -> None:
    """Without anything of the recording: the peak of ``requested_bytes`` over a plain call of what runs in the end."""
    from peakmem_inductor.backend import peakmem

    net, x = branches(torch).eval(), torch.randn(256, 64, device="cuda")
    compiled = torch.compile(net, backend=partial(peakmem, options={"pool": True}))

    def requested(which: str) -> int:
        return int(torch.cuda.memory_stats()[f"requested_bytes.all.{which}"])

    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        torch.cuda.reset_peak_memory_stats()
        before = requested("current")
        compiled(x)
        (row,) = peakmem_inductor.report()
        assert row.state == "pooled"
        assert requested("peak") - before == row.after


@pytest.mark.parametrize("own", [False, True], ids=["", "history of the user"])
def test_requests_of_a_call_are_recorded_one_by_one(torch: Any, own: bool) -> None:
    """Attention asks for two numbers before its results; a history that the user keeps goes on."""
    from peakmem_inductor import record
    from peakmem_inductor.backend import peakmem

    q = torch.randn(2, 4, 16, 32, device="cuda")
    seen: list[Any] = []
    plain = record.record_profile

    def kept(*args: Any) -> Any:
        result, profile = plain(*args)
        seen.append(profile)
        return result, profile

    def attend(x: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    keep_history = torch.cuda.memory._record_memory_history
    if own:
        keep_history(context=None, stacks="python")
    try:
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(record, "record_profile", kept)
            torch._dynamo.reset()
            torch.compile(attend, backend=peakmem)(q)
        assert torch._C._cuda_isHistoryEnabled() == own
    finally:
        keep_history(enabled=None)
    (profile,) = seen
    (rows,) = (rows for text, rows in profile.requests.items() if "scaled_dot_product" in text)
    assert [change for name, change in rows if name.startswith("+")][:2] == [8, 8]
    assert sum(change for name, change in rows if not name.startswith("+")) == q.numel() * 4


def test_arguments_set_aside_come_back(torch: Any) -> None:
    """Contents are the same where the device computes; on any, what was freed is made again on its device."""
    from peakmem_inductor.arguments import Again
    from peakmem_inductor.devices import computes

    values = [torch.arange(5 << 20, device="cuda"), torch.ones(3, 4, device="cuda").t(), torch.ones(2)]
    again = Again(["a", "b", "c"], values)
    want = again.seen([v.clone() for v in values])
    args = list(values)
    values.clear()
    again.set_aside(args, ["a", "b"], ["b"])
    for _ in range(2):
        taken = again.take()
        assert [v.device.type for v in taken] == ["cuda", "cuda", "cpu"]
        assert (tuple(taken[1].shape), taken[1].stride()) == ((4, 3), (1, 4))
        if computes("cuda:0"):
            assert {k: v for k, v in again.seen(taken).items() if k in want} == want
        taken.clear()
