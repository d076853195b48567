"""The static pool: one request, the planned bytes, the same bits; and a text whose pool is unsound is told apart.

That every order of every graph of `test_orders_are_exact` has these three is asserted there.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import peakmem
import peakmem_inductor
import pytest
from peakmem.model import InputError, PeakmemError, UsageError
from peakmem_inductor.building import build_graph
from peakmem_inductor.pooling import add_pool, has_pool, remove_pool
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.structure import compare_graphs
from peakmem_inductor.wrapper import parse_wrapper
from texts import wrapper_of

BODY = """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float64)
k_read(saved, buf1)
buf2 = reinterpret_tensor(buf0, (2, 8), (8, 1), 0); del buf0  # reuse
buf3 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
k_two(buf2, buf1, buf3)
del buf1
del buf2
buf4 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf3, buf4)
del buf3
buf5 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf4, buf5)
del buf4
return (buf5, )
"""


def read(text: str) -> tuple[Any, Any]:
    wrapper = parse_wrapper(text)
    return wrapper, profile_from_text(wrapper)


def test_buffers_lie_in_one_block_of_the_planned_size() -> None:
    pooled = add_pool(*read(wrapper_of(BODY)))
    # 64 + 128 + 128 bytes live together, each at a multiple of 64; the result is outside and comes while buf4 lives.
    assert (pooled.inside, pooled.sizes, pooled.least) == (4, {"empty_strided_cpu": 320}, True)
    assert set(pooled.outside) == {"buf5"}
    assert "outlives the call" in pooled.outside["buf5"]
    assert pooled.predicted == 320 + 64 == simulate(pooled.wrapper, pooled.profile)
    assert pooled.wrapper.source.count("empty_strided_cpu((") == 2
    assert "buf2 = reinterpret_tensor(buf0, (2, 8), (8, 1), 0); del buf0  # reuse" in pooled.wrapper.source
    # What the text says is what the profile says.
    again = profile_from_text(pooled.wrapper)
    assert dict(again.names) == dict(pooled.profile.names)


def test_without_its_pool_it_is_the_program_that_it_was() -> None:
    wrapper, profile = read(wrapper_of(BODY))
    pooled = add_pool(wrapper, profile)
    assert has_pool(pooled.wrapper) and not has_pool(wrapper)
    back, its = remove_pool(pooled.wrapper, pooled.profile)
    assert its.names == profile.names
    assert simulate(back, its) == simulate(wrapper, profile)
    assert not compare_graphs(build_graph(wrapper, profile), build_graph(back, its)).difference


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("buf3 = alloc_from_pool(peakmem_pool, {3}", "buf3 = alloc_from_pool(peakmem_pool, {1}", "alive together"),
        ("buf3 = alloc_from_pool(peakmem_pool, {3}", "buf3 = alloc_from_pool(peakmem_pool, 256", "does not fit"),
        ("buf4 = alloc_from_pool(peakmem_pool, {4}", "buf4 = alloc_from_pool(peakmem_pool, 32", "does not fit"),
        ("peakmem_pool = empty_strided_cpu((320, )", "peakmem_pool = empty_strided_cpu((256, )", "does not fit"),
    ],
)
def test_an_unsound_pool_is_told_apart(tmp_path: Path, old: str, new: str, says: str) -> None:
    from peakmem_inductor.model import InductorModel

    wrapper, profile = read(wrapper_of(BODY))
    pooled = add_pool(wrapper, profile)
    at = {n: x.offset * x.itemsize for n, x in pooled.profile.names.items()}
    places = [at[f"buf{i}"] for i in range(5)]
    changed = pooled.wrapper.source.replace(old.format(*places), new.format(*places))
    assert changed != pooled.wrapper.source
    with pytest.raises(InputError, match=says):
        remove_pool(*read(changed))
    found = InductorModel(wrapper, profile).structure(InductorModel(*read(changed)))
    assert "the pool is not sound" in found.difference
    assert says in found.difference


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\nreturn (buf0, )", "buf0 is a result, which outlives the call"),
        ("buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\nk_read(saved, buf0)\nbuf1 = buf0\nreturn (buf1, )", "buf0 is a result"),
        ("buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\ntorch.ops.mine.look(buf0)\ndel buf0\nreturn ()", "given to torch.ops.mine.look"),
        ("buf0 = empty_strided_cpu((0, 4), (4, 1), torch.float32)\nk_read(saved, buf0)\ndel buf0\nreturn ()", "buf0 is without elements"),
        ("buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\nk_read(saved, buf0)\nreturn ()", "buf0 is never deleted"),
        ("buf0 = empty_strided((4, 4), (4, 1), device='xpu', dtype=torch.float32)\nk_read(saved, buf0)\ndel buf0\nreturn ()", "which has no pool"),
        ("return (saved, )", "the program allocates none"),
    ],
)
def test_what_cannot_lie_in_a_pool_stays_outside(body: str, reason: str) -> None:
    with pytest.raises(PeakmemError, match="no buffer can lie in a pool") as caught:
        add_pool(*read(wrapper_of(body)))
    assert reason in str(caught.value)


def test_sizes_that_are_arguments_are_fixed_only_where_the_text_runs_with_no_others() -> None:
    body = "s0 = arg0_1\nbuf0 = empty_strided_cpu((s0, 4), (4, 1), torch.float32)\nk_read(saved, buf0)\ndel buf0\nreturn ()"
    wrapper = parse_wrapper(wrapper_of(body).replace("arg0_1 = rand_strided((4, 4), (4, 1), device='cpu', dtype=torch.float32)", "arg0_1 = 6"))
    profile = profile_from_text(wrapper)
    with pytest.raises(PeakmemError, match="buf0 is of a size that changes"):
        add_pool(wrapper, profile)
    pooled = add_pool(wrapper, profile, fixed_sizes=True)
    assert pooled.size == 96
    assert "buf0 = alloc_from_pool(peakmem_pool, 0, torch.float32, (6, 4), (4, 1))" in pooled.wrapper.source


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    pooled = add_pool(*read(wrapper_of(BODY).replace("arg0_1", "peakmem_pool")))
    assert "peakmem_pool_ = empty_strided_cpu((320, )" in pooled.wrapper.source


def test_each_device_has_a_pool_of_its_own_and_the_other_one_counts_nothing() -> None:
    body = BODY.replace("empty_strided_cpu((4, 8)", "empty_strided_cuda((4, 8)").replace("empty_strided_cpu((4, 4), (4, 1), torch.float64", "empty_strided_cuda((4, 4), (4, 1), torch.float64")
    wrapper, profile = read(wrapper_of(body))
    assert profile.device == "cuda:0"
    pooled = add_pool(wrapper, profile)
    assert pooled.sizes == {"empty_strided_cuda": 256 + 128}
    assert pooled.outside["buf0"] == "on another device, cpu"


def branches(torch: Any) -> Any:
    nn = torch.nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ModuleList(nn.Linear(32, 128) for _ in range(3))
            self.down = nn.ModuleList(nn.Linear(128, 32) for _ in range(3))

        def forward(self, x: Any) -> Any:
            wide = [torch.nn.functional.gelu(u(x)) for u in self.up]
            return torch.stack([d(w) for d, w in zip(self.down, wide)]).mean(0)

    return Net()


def test_the_backend_runs_in_the_pool_with_the_same_bits(torch: Any) -> None:
    net, x = branches(torch), torch.randn(16, 32)

    def gradients(compiled: Any) -> list[Any]:
        net.zero_grad()
        y = compiled(x)
        y.sum().backward()
        return [y.detach().clone(), *(p.grad.clone() for p in net.parameters())]

    want = gradients(torch.compile(net, backend="inductor"))
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="peakmem", options={"pool": True})
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled), want))
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x), want[0])
    rows = peakmem_inductor.report()
    assert [r.state for r in rows] == ["pooled"] * 3
    for row in rows:
        assert row.identical
        assert row.measured == row.after
        assert "buffers in 1 allocation of" in row.pool
    assert "in 1 allocation of" in str(rows)
    json = rows.to_json()
    assert json[0]["pool"] == rows[0].pool


def test_one_request_beside_the_results(torch: Any) -> None:
    """Counted by the allocator, not by the text: the block of the pool, the results, and nothing else."""
    from peakmem_inductor import dispatch
    from peakmem_inductor.allocator import counting

    programs: list[Any] = []
    make = dispatch.compile_call

    def keep(*args: Any) -> Any:
        programs.append(make(*args))
        return programs[-1]

    net, x = branches(torch), torch.randn(16, 32)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(dispatch, "compile_call", keep)
        compiled = torch.compile(net, backend="peakmem", options={"pool": True})
        compiled(x)
    (row,) = peakmem_inductor.report()
    (program,) = programs
    with torch.no_grad():
        # Arguments in the order that Inductor gave them: its parameters and the input, by their shapes.
        text = Path(row.path).read_text()
        names = parse_wrapper(text)
        profile = profile_from_text(names)
        pool = [p.detach() for p in net.parameters()] + [x]
        args = []
        for name in names.inputs:
            (at, found) = next((i, t) for i, t in enumerate(pool) if tuple(t.shape) == profile.names[name].shape)
            args.append(found)
            pool.pop(at)
        with counting() as counter:
            counter.mark()
            result = program(args)
            _, now, events = counter.mark()
    sizes = sorted(size for _, size in events if size > 0)
    assert sizes == sorted([int(row.pool.split(" of ")[1].split()[0].replace(",", "")), *(r.untyped_storage().nbytes() for r in result)])
    assert counter.peak == row.after
    assert now == sum(r.untyped_storage().nbytes() for r in result)


def test_fits_leaves_out_a_pool_that_needs_more(torch: Any) -> None:
    net, x = branches(torch), torch.randn(16, 32)
    with torch.no_grad():
        torch.compile(net, backend="peakmem", options={"pool": "fits"})(x)
    (row,) = peakmem_inductor.report()
    assert row.state in ("kept", "permuted")
    assert row.after <= row.before
    assert "more than without" in row.unpooled
    assert "no pool: with a pool of" in str(peakmem_inductor.report())


@pytest.mark.parametrize("value", ["yes", 1.5, None])
def test_a_bad_option_is_one_sentence(torch: Any, value: Any) -> None:
    from peakmem_inductor.backend import split_options

    with pytest.raises(UsageError, match=r"pool: .* is none of True, False and 'fits'"):
        split_options({"pool": value})
    assert dataclasses.asdict(split_options({"pool": True})[0])["pool"] == "always"


@pytest.mark.parametrize("where", ["intermediates", "outputs"])
def test_programs_that_inductor_planned_are_permuted_too(torch: Any, check: Any, where: str) -> None:
    from torch._inductor import config

    net, x = branches(torch), torch.randn(16, 32)
    with config.patch(memory_planning=True, memory_pool=where), torch.no_grad():  # in training torch 2.13 plans none
        torch.compile(net, backend=check.backend)(x)
    check.assert_exact(graphs=1)
    assert any("= alloc_from_pool(pool" in row["graph"].wrapper.source for row in check.rows)


def test_the_command_writes_a_program_with_a_pool(torch: Any, tmp_path: Path) -> None:
    net, x = branches(torch), torch.randn(16, 32)
    with peakmem_inductor.dump(tmp_path) as written, torch.no_grad():
        torch.compile(net, backend="peakmem")(x)
    (path,) = written()
    out = tmp_path / "pooled.py"
    command = [sys.executable, "-m", "peakmem_cli", "optimize", str(path), "--pool", "-o", str(out), "--json"]
    if subprocess.run([sys.executable, "-c", "import peakmem_cli"], capture_output=True).returncode:
        pytest.skip("peakmem-cli is not installed")
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    before, after = peakmem.load(path), peakmem.load(out)
    assert has_pool(after.wrapper)
    assert any("buffers in 1 allocation of" in n for n in __import__("json").loads(run.stdout)["notes"])
    found = peakmem.verify(before, after)
    found.raise_for_difference()
    assert found.bitwise_identical
    assert found.optimized_bytes == after.predicted_bytes
