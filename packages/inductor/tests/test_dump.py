"""Dumped wrappers: studied, rewritten, saved and verified by running both in a child process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import peakmem
import peakmem_inductor
import pytest
from fresh import fresh_torch
from peakmem.model import RuntimeFailed, RuntimeMissing, Schedule, UsageError
from peakmem_inductor.emitting import emit
from peakmem_inductor.profile import profile_path


def branches(torch: Any) -> Any:
    """Wide branches whose first layers are all written first."""
    nn, F = torch.nn, torch.nn.functional

    class Branches(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ModuleList(nn.Conv2d(8, 48, 1) for _ in range(4))
            self.down = nn.ModuleList(nn.Conv2d(48, 4, 3, padding=1) for _ in range(4))

        def forward(self, x: Any) -> Any:
            wide = [F.relu(u(x)) for u in self.up]
            return torch.cat([d(w) for d, w in zip(self.down, wide)], 1)

    return Branches()


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Backward and forward; no test writes to them."""
    with fresh_torch() as torch, peakmem_inductor.dump(tmp_path_factory.mktemp("dumped") / "w") as written:
        torch.compile(branches(torch), backend="peakmem")(torch.randn(1, 8, 16, 16)).sum().backward()
    paths: list[Path] = written()
    assert len(paths) == 2
    assert all(profile_path(p).exists() for p in paths)
    return paths


def test_a_dump_is_studied_without_torch_and_verified_with_it(dumped: list[Path], tmp_path: Path) -> None:
    backward, forward = dumped
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import peakmem\n"
        "for p in sys.argv[1:]:\n"
        "    m = peakmem.load(p); r = peakmem.optimize(m, measure=False)\n"
        "    print(m.predicted_bytes, r.model.predicted_bytes, r.optimal)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(backward), str(forward)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = [r.split() for r in ran.stdout.splitlines()]
    assert all(int(after) <= int(before) for before, after, _ in rows)
    assert [optimal for *_, optimal in rows] == ["True", "True"]
    for path in dumped:
        model = peakmem.load(path)
        assert model.profile.measured_peak == model.predicted_bytes, "the recorded run is what is modelled"
    result = peakmem.optimize(peakmem.load(backward))  # the forward runs in the next test
    check = result.verification
    assert check is not None, result.unmeasured
    assert check.as_predicted, check.failures
    assert check.bitwise_identical
    out = tmp_path / backward.name
    result.model.save(out)
    assert peakmem.load(out).predicted_bytes == check.predicted_bytes
    with pytest.raises(UsageError, match="exists already"):
        result.model.save(out)


def test_verify_finds_a_wrong_program_and_a_wrong_model(dumped: list[Path]) -> None:
    from dataclasses import replace

    from peakmem_inductor.model import InductorModel
    from peakmem_inductor.wrapper import parse_wrapper

    model = peakmem.load(dumped[1])
    source = model.wrapper.source
    # one bias is taken from a later layer: same shapes, other numbers
    rows = [r for r in source.splitlines() if "extern_kernels.convolution(" in r]
    biases = [r.split(",")[2].strip() for r in rows]
    same = [(i, j) for j in range(len(rows)) for i in range(j) if "None" not in (biases[i], biases[j]) and biases[i] != biases[j]]
    assert same, "this wrapper has nothing to exchange"
    i, j = same[-1]
    wrong = parse_wrapper(source.replace(rows[i], rows[i].replace(biases[i], biases[j])))
    row = model.verify(InductorModel(wrong, replace(model.profile, digest=wrong.digest)))
    assert row.baseline_bytes == model.predicted_bytes
    assert row.bitwise_identical is False
    assert any("other bits" in f for f in row.failures)
    more = replace(model.profile, workspaces={k: v + 8 for k, v in model.profile.workspaces.items()})
    row = model.verify(InductorModel(model.wrapper, more))
    assert row.bitwise_identical
    assert any("modelled were" in f for f in row.failures)


def test_what_cannot_be_run_says_so(dumped: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from peakmem_inductor import model as module

    model = peakmem.load(dumped[0])
    opaque = module.InductorModel(model.wrapper, replace(model.profile, constants={"_frozen_param3": None}))
    with pytest.raises(RuntimeFailed, match="_frozen_param3"):
        opaque.verify(opaque)
    text = module.InductorModel(model.wrapper, replace(model.profile, torch=""))
    with pytest.raises(RuntimeFailed, match="no recorded profile"):
        text.verify(text)
    monkeypatch.setattr(module, "torch_version", lambda: None)
    with pytest.raises(RuntimeMissing, match="pip install"):
        model.verify(model)


def test_every_order_is_written_as_it_was_asked_for(dumped: list[Path]) -> None:
    model = peakmem.load(dumped[0])
    order = tuple(range(len(model.program)))
    first = model.apply(Schedule({"": order})).wrapper.source
    assert first == model.apply(Schedule({"": order})).wrapper.source
    with pytest.raises(peakmem.PeakmemError):
        emit(model.graph, order[::-1])
