"""Splitting against brute force: small programs of rows of numbers, run whole and in bands by kernels that know no whole."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, product

import pytest
from peakmem.frontends.splitting import Axis, Region, RowMap, Rows, Rule, Splittable, exactly
from peakmem.model import Buffer, Program, Refused, Statement, UsageError, peak_of
from peakmem.transform.split import Search, by_hand, lay_out
from peakmem.transform.split.estimate import Candidate, Estimator
from peakmem.transform.split.maps import Magnify, Pad, Same, Scatter, Shrink, Window
from peakmem.transform.split.search import Point, estimated_front, live_peak, pareto

Row = int
LARGE = 1_000_003


@dataclass
class Kernel:
    """An operator on rows, as a runtime has it: it sees the rows it is given and nothing else."""

    map: RowMap
    name: str
    seed: int = 1

    def run(self, *operands: list[Row]) -> list[Row]:
        x, rule = operands[0], self.map
        if isinstance(rule, Window):
            out, padding = rule.geometry(len(x))
            result = []
            for r in range(out):
                cells = [(k, x[r * rule.stride - padding + k]) for k in range(rule.reach) if 0 <= r * rule.stride - padding + k < len(x)]
                # The number of cells counts, as in average pooling, and so does where in the window they are.
                result.append((sum((k + self.seed) * v for k, v in cells) * 31 + len(cells)) % LARGE)
            return result
        if isinstance(rule, Pad):
            return [7] * rule.top + x + [7] * rule.bottom
        if isinstance(rule, Magnify):
            if not rule.blend:
                return [v * 3 + j for v in x for j in range(rule.factor)]
            near = [x[0], *x, x[-1]]
            return [near[i] + 5 * near[i + 1] + 11 * near[i + 2] + j for i in range(len(x)) for j in range(rule.factor)]
        if isinstance(rule, Shrink):
            return [sum((j + 1) * v for j, v in enumerate(x[i : i + rule.factor])) for i in range(0, len(x), rule.factor)]
        if isinstance(rule, Scatter):
            out, cut = rule.geometry(len(x))
            result = [0] * (out + cut + rule.kernel)
            for i, v in enumerate(x):
                for k in range(rule.kernel):
                    result[i * rule.stride + k] += (k + self.seed) * v
            return result[cut : cut + out]
        assert isinstance(rule, Same)
        return [sum((j + 1) * v for j, v in enumerate(values)) % LARGE for values in zip(*operands)]


@dataclass
class Net(Splittable):
    """A program of such kernels; a row of a buffer has ``width`` bytes, and a row computed costs as many MACs."""

    kernels: list[Kernel] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    heights: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    cut = "cut"
    join = "join"
    most_joined = 4
    overhead = 0

    def finish(self) -> Net:
        read = {b for row in self.inputs for b in row}
        n = len(self.heights)
        buffers = tuple(
            Buffer(f"b{b}", self.heights[b] * self.widths[b], "input" if b == 0 else "intermediate" if b in read else "output")
            for b in range(n)
        )
        statements = tuple(
            Statement(f"{v}:{k.name}", k.name, row, (v + 1,), tuple(sorted({b - 1 for b in row if b})), cost=self.heights[v + 1] * self.widths[v + 1])
            for v, (k, row) in enumerate(zip(self.kernels, self.inputs))
        )
        self.program = Program(buffers, statements)
        return self

    def extent(self, buffer: int, axis: Axis) -> int:
        return self.heights[buffer] if axis == "rows" else 0

    def size(self, buffer: int, axis: Axis, count: int) -> int:
        return self.widths[buffer] * count

    def rule(self, statement: int, axis: Axis) -> Rule | str:
        return Rule(self.kernels[statement].map, self.inputs[statement]) if axis == "rows" else "has no channels"

    def price(self, statement: int, axis: Axis, reads: Mapping[int, tuple[int, int]], count: int) -> tuple[int, int]:
        return 0, count * self.widths[statement + 1]


def net(seed: int, length: int) -> Net:
    """A random net of rows, with skips where heights allow."""
    rng = random.Random(seed)
    made = Net(heights=[rng.randint(6, 24)], widths=[rng.randint(1, 4)])
    for v in range(length):
        source = v if rng.random() < 0.8 else rng.randrange(v + 1)
        h = made.heights[source]
        kind = rng.choice(("window", "window", "window", "same", "pad", "magnify", "shrink", "scatter"))
        operands = (source,)
        rule: RowMap = Same()
        if h > 60:
            kind = "window"
        if kind == "window":
            reach = rng.randint(1, min(5, h))
            rule = Window(h, reach, rng.choice((1, 1, 2, 3)) if h > 5 else 1, rng.random() < 0.7, rng.random() < 0.2)
            out = rule.geometry(h)[0]
        elif kind == "pad":
            rule = Pad(h, rng.randint(0, 2), rng.randint(0, 2))
            out = h + rule.top + rule.bottom
        elif kind == "magnify":
            rule = Magnify(h, rng.randint(2, 3), rng.random() < 0.5)
            out = h * rule.factor
        elif kind == "shrink" and any(h % f == 0 for f in (2, 3)):
            rule = Shrink(h, 2 if h % 2 == 0 else 3)
            out = h // rule.factor
        elif kind == "scatter":
            rule = Scatter(h, rng.randint(1, 4), rng.randint(1, 2), rng.random() < 0.5)
            out = rule.geometry(h)[0]
        else:
            alike = [b for b in range(v + 1) if made.heights[b] == h and b != source]
            operands = (source, rng.choice(alike)) if alike else (source,)
            out = h
        made.kernels.append(Kernel(rule, type(rule).__name__, rng.randint(1, 9)))
        made.inputs.append(operands)
        made.heights.append(out)
        made.widths.append(rng.randint(1, 4))
    return made.finish()


def run_whole(made: Net, x: list[Row]) -> list[list[Row]]:
    values = [x]
    for kernel, row in zip(made.kernels, made.inputs):
        values.append(kernel.run(*(values[b] for b in row)))
    return values


def run_split(made: Net, split: object, x: list[Row]) -> dict[int, list[Row]]:
    """Execute the steps of a split program, each on the rows it is given."""
    from peakmem.frontends.splitting import Split

    assert isinstance(split, Split)
    n = len(made.heights)
    values: dict[int, list[Row]] = {0: x}
    for step in split.steps:
        given = [values[b] for b in step.reads]
        (y,) = step.writes
        if step.kind in ("keep", "run"):
            values[y] = made.kernels[step.statement].run(*given)
        elif step.kind == "join":
            values[y] = [row for piece in given for row in piece]
        else:
            part, source = split.parts[y - n], step.reads[0]
            start = part.start - (split.parts[source - n].start if source >= n else 0)
            values[y] = given[0][start : start + part.count]
        wanted = split.parts[y - n].count if y >= n else made.heights[y]
        assert len(values[y]) == wanted
    return values


@pytest.mark.parametrize("seed", range(60))
def test_bands_compute_what_the_whole_does(seed: int) -> None:
    rng = random.Random(seed)
    made = net(seed, rng.randint(2, 7))
    x = [rng.randrange(LARGE) for _ in range(made.heights[0])]
    whole = run_whole(made, x)
    n = len(made.program)
    done = 0
    for _ in range(12):
        first = rng.randrange(n)
        region = Region(first, min(n - 1, first + rng.randint(0, 4)), rng.randint(2, 7), kept=rng.random() < 0.5)
        try:
            split = lay_out(made, range(n), [region])
        except Refused:
            continue
        values = run_split(made, split, x)
        for b in values.keys() & set(range(n + 1)):
            assert values[b] == whole[b], (region, b)
        done += 1
    assert done or all(min(made.heights[1:]) < 8 or "Window" in k.name for k in made.kernels[-1:])


def test_most_regions_can_run_in_bands() -> None:
    """The property above is not met by refusing everything."""
    done = refused = 0
    for seed in range(60):
        made = net(seed, 5)
        for bands in (2, 3):
            for kept in (False, True):
                try:
                    lay_out(made, range(5), [Region(1, 3, bands, kept=kept)])
                    done += 1
                except Refused:
                    refused += 1
    assert done > refused


@pytest.mark.parametrize("seed", range(40))
def test_kept_halos_are_computed_once(seed: int) -> None:
    """But for rows that a kernel sees at the false end of a band: without padding there are none, and no more MACs."""
    rng = random.Random(seed)
    length = rng.randint(2, 6)
    made = Net(heights=[rng.randint(24, 40)], widths=[1])
    for v in range(length):
        h = made.heights[-1]
        rule = rng.choice((Window(h, rng.randint(1, 3), 1, False), Same()))
        made.kernels.append(Kernel(rule, "", v + 1))
        made.inputs.append((v,))
        made.heights.append(rule.geometry(h)[0] if isinstance(rule, Window) else h)
        made.widths.append(rng.randint(1, 3))
    made.finish()
    x = [rng.randrange(LARGE) for _ in range(made.heights[0])]
    bands = rng.randint(2, 5)
    split = lay_out(made, range(length), [Region(0, length - 1, bands, kept=True)])
    assert split.extra_macs == 0
    assert run_split(made, split, x)[length] == run_whole(made, x)[length]
    for y in range(1, length + 1):  # every row once, no row twice
        rows = [split.parts[s.writes[0] - length - 1] for s in split.steps if s.kind == "run" and s.statement == y - 1]
        assert sum(part.count for part in rows) == made.heights[y]


def test_a_chain_longer_than_what_is_deferred_is_laid_out_all_the_same() -> None:
    """By hand a region may be of any length; values made one for the other are no deeper recursion than is fixed."""
    made = Net(heights=[12], widths=[1])
    for v in range(600):
        made.kernels.append(Kernel(Window(12, 3, 1, True), "", 1))
        made.inputs.append((v,))
        made.heights.append(12)
        made.widths.append(1)
    made.finish()
    x = list(range(12))
    split = lay_out(made, range(600), [Region(0, 599, 2, kept=True)])
    assert run_split(made, split, x)[600] == run_whole(made, x)[600]


def ladder(height: int = 24) -> Net:
    """Values that several later ones are made of, all as large: in no order are few of them held, and halos would grow."""
    made = Net(heights=[height], widths=[1])

    def add(rule: RowMap, *operands: int, width: int = 16) -> int:
        made.kernels.append(Kernel(rule, "add" if len(operands) > 1 else "conv", len(made.kernels) + 1))
        made.inputs.append(operands)
        made.heights.append(height)
        made.widths.append(width)
        return len(made.kernels)

    a = add(Window(height, 3, 1, True), 0)
    b = add(Window(height, 3, 1, True), a)
    for _ in range(4):
        c = add(Same(), a, b)
        a, b = b, add(Window(height, 3, 1, True), add(Window(height, 3, 1, True), c))
    add(Window(height, 3, 1, True), add(Same(), a, b), width=1)
    return made.finish()


def test_where_halos_would_grow_they_are_kept() -> None:
    made = ladder()
    n, macs = len(made.program), sum(s.cost for s in made.program.statements)
    peak = live_peak(made.program)
    found = Search(made, [tuple(range(n))], peak, most=macs // 4).run()
    least = found.points[-1]
    assert least.peak < peak and any(r.kept for r in least.regions)
    x = list(range(made.heights[0]))
    assert run_split(made, lay_out(made, least.order, least.regions), x)[n] == run_whole(made, x)[n]


@pytest.mark.parametrize("rule", [
    Window(20, 3, 1, True), Window(21, 3, 2, True), Window(20, 4, 2, False), Window(17, 5, 3, True), Window(9, 2, 3, True),
    Pad(8, 1, 2), Magnify(7, 3), Magnify(7, 2, True), Shrink(12, 3), Scatter(9, 3, 2, True), Scatter(9, 4, 2, False), Scatter(9, 1, 2, True),
])  # fmt: skip
def test_rows_called_right_are_those_of_the_whole(rule: RowMap) -> None:
    kernel = Kernel(rule, "", 3)
    extent = rule.extent  # type: ignore[attr-defined]
    rng = random.Random(extent)
    x = [rng.randrange(LARGE) for _ in range(extent)]
    whole = kernel.run(x)
    right = 0
    for start in range(extent):
        for end in range(start + 1, extent + 1):
            band = rule.output(exactly(start, end))
            if band is None:
                continue
            found = kernel.run(x[start:end])
            assert len(found) == band.count
            assert band.start <= band.low < band.high <= band.end
            right += band.high - band.low
            for r in range(band.low, band.high):
                assert found[r - band.start] == whole[r], (start, end, r)
            a, e = rule.need(band.low, band.high)
            assert start <= a < e <= end
    assert right
    assert rule.output(exactly(0, extent)) == Rows(0, len(whole), 0, len(whole))


@pytest.mark.parametrize("seed", range(24))
def test_an_estimate_is_not_below_what_the_best_order_needs(seed: int) -> None:
    made = net(seed, 5)
    order = tuple(range(5))
    estimator = Estimator(made, order)
    for first, last in combinations(range(5), 2):
        shape = estimator.region(first, last, "rows")
        if isinstance(shape, str):
            continue
        for bands, kept in product((2, 3, 5), (False, True)):
            one = shape.halos_kept(bands) if kept else shape.in_bands(bands)
            if one is None:
                continue
            split = lay_out(made, order, [Region(first, last, bands, kept=kept)])
            outside = max((estimator.live[k] for k in order if not first <= k <= last), default=0)
            assert split.extra_macs == one.extra
            assert live_peak(split.program, 10**6) <= max(one.peak, outside)


def test_the_estimated_front_is_the_best_choice_of_regions() -> None:
    made = net(3, 6)
    order = tuple(range(6))
    estimator = Estimator(made, order)
    peak = max(estimator.live)
    rng = random.Random(0)
    for _ in range(50):
        found = []
        for _ in range(8):
            first = rng.randrange(6)
            found.append(Candidate(first, rng.randrange(first, 6), 2, "rows", rng.randrange(1, peak), rng.randrange(9)))
        for level, macs, _ in estimated_front(estimator, found, peak):
            costs = []
            for size in range(len(found) + 1):
                for chosen in combinations(found, size):
                    places = [k for c in chosen for k in range(c.first, c.last + 1)]
                    rest = [estimator.live[k] for k in range(6) if k not in places]
                    if len(set(places)) == len(places) and max([*rest, *(c.peak for c in chosen)]) <= level:
                        costs.append(sum(c.extra for c in chosen))
            assert macs == min(costs)


def hourglass(height: int = 32) -> Net:
    """A narrow input, a wide middle, a narrow output: the middle is the peak of the only order."""
    made = Net(heights=[height], widths=[1])
    for width in (16, 16, 1):
        made.kernels.append(Kernel(Window(height, 3, 1, True), "conv"))
        made.inputs.append((len(made.kernels) - 1,))
        made.heights.append(height)
        made.widths.append(width)
    return made.finish()


def test_the_search_goes_below_every_order() -> None:
    made = hourglass()
    peak = peak_of(made.program)
    found = Search(made, [tuple(range(3))], peak, most=made.program.statements[1].cost).run()
    assert found.complete
    least = found.points[-1]
    assert least.peak < 0.6 * peak
    assert least.peak == live_peak(lay_out(made, least.order, least.regions).program)
    again = Search(made, [tuple(range(3))], peak, most=made.program.statements[1].cost).run()
    assert again.points == found.points


def test_no_macs_to_spend_leaves_regions_without_a_halo_alone() -> None:
    found = Search(hourglass(), [(0, 1, 2)], 10**6, most=0).run()
    assert all(p.extra_macs == 0 for p in found.points)


def test_the_front_holds_no_point_that_another_beats() -> None:
    points = [Point(9, 0, 1, ()), Point(5, 3, 9, ()), Point(5, 4, 2, ()), Point(4, 5, 30, ())]
    assert pareto(points) == [points[0], points[1], points[3]]
    assert pareto(points, weight=1) == [points[0], points[2]]


def test_regions_that_cannot_be_say_why() -> None:
    made = hourglass()
    for regions, said in (
        ([Region(0, 1, 2), Region(1, 2, 2)], "overlap"),
        ([Region(2, 7, 2)], "do not exist"),
        ([Region(0, 2, 33)], "not as many rows"),
        ([Region(0, 2, 33, kept=True)], "not as many rows"),
        ([Region(0, 2, 1)], "one band"),
        ([Region(0, 2, 2, "channels")], "has no channels"),
    ):
        with pytest.raises(Refused, match=said):
            lay_out(made, range(3), regions)


def test_many_bands_are_joined_in_several_steps() -> None:
    made = hourglass()
    split = lay_out(made, range(3), [Region(0, 2, 11)])
    joins = [s for s in split.steps if s.kind == "join"]
    assert len(joins) > 1
    assert all(len(s.reads) <= made.most_joined for s in joins)
    x = list(range(32))
    assert run_split(made, split, x)[3] == run_whole(made, x)[3]


@pytest.mark.parametrize(("text", "bands"), [("a..b", 2), ("3..", 2), ("2..3", 1), ("-1..2", 2)])
def test_regions_by_hand_are_read_or_refused(text: str, bands: int) -> None:
    assert by_hand("2..3", 4) == Region(2, 3, 4)
    assert by_hand("5", 2, "channels") == Region(5, 5, 2, "channels")
    assert by_hand("2..3", 2, kept=True) == Region(2, 3, 2, "rows", True)
    with pytest.raises(UsageError, match="no region"):
        by_hand(text, bands)
