"""What a page tells, gathered from a result, a recomputation or a pair of artifacts; no markup here."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from peakmem.frontends import Model, Verification, frontend_version
from peakmem.model import Schedule, Timeline, scheduled_timeline, timeline
from peakmem.report import words
from peakmem.report.data import Bars, arena, planned
from peakmem.report.figures import Bound
from peakmem.report.words import clean, percent, shorten
from peakmem.result import Result
from peakmem.system.sizes import human, in_bytes, short

if TYPE_CHECKING:
    from peakmem.model import Program
    from peakmem.proof import Certificate
    from peakmem.report.pair import Pair
    from peakmem.transform.recompute import Recomputation
    from peakmem.transform.split import Splitting

LARGEST_CERTIFICATE = 256 * 1024
"""Bytes; a larger certificate is named and left out."""

MOVES = 10
"""Moved statements that are listed."""

MOST_REASONS = 120
"""Sentences of an explanation that are shown."""


@dataclass(frozen=True)
class Tile:
    """One figure of the head: what it is, the figure, and what must be read beside it."""

    label: str
    value: str
    beside: str
    proved: bool = False


@dataclass(frozen=True)
class Story:
    """Everything on a page, as text and figures.

    Attributes
    ----------
    answer : str
        The first line of the command.
    heading : str
        Of ``lines``: whether anything was measured.
    tiles : tuple of Tile
    lines, notes, failures : tuple of str
        Sentences under the answer; what a reader must know; what differs.
    before, after : Timeline
    bounds : tuple of Bound
    arenas : tuple of (str, Bars)
        What each is, and its blocks: before and after where the model tells, else what the schedule planned.
    proof, scope : str
        Which orders the certificate speaks of, and of which bytes where that needs saying.
    certificate : Certificate or None
        Of ``proved``, the program it is about.
    moved : tuple of str
    front : tuple or None
        Points and floor, as `peakmem.report.front.front_svg` has them.
    plan : tuple of str
        Reruns of the chosen plan.
    facts : tuple of (str, str)
        Provenance.
    checks : str
        The file that the certificate is checked against.
    """

    name: str
    answer: str
    heading: str
    tiles: tuple[Tile, ...]
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    before: Timeline
    after: Timeline
    bounds: tuple[Bound, ...]
    facts: tuple[tuple[str, str], ...] = ()
    arenas: tuple[tuple[str, Bars], ...] = ()
    proof: str = ""
    scope: str = ""
    certificate: Certificate | None = None
    proved: Program | None = None
    moved: tuple[str, ...] = ()
    front: tuple[tuple[tuple[int, int, bool], ...], int] | None = None
    plan: tuple[str, ...] = ()
    checks: str = ""
    paths: tuple[Path, ...] = ()

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why no order does better, sentence by sentence; details are indented."""
        from peakmem.proof import explain

        if self.certificate is None or self.proved is None:
            return ()
        lines = explain(self.proved, self.certificate.to_json(), show=lambda name: shorten(clean(name)))
        left = len(lines) - MOST_REASONS
        return (*lines[:MOST_REASONS], f"and {left} more sentences") if left > 0 else tuple(lines)

    @cached_property
    def certificate_data(self) -> bytes | None:
        """The certificate's file; None if there is none or it is too large to go along."""
        data = self.certificate.to_bytes() if self.certificate is not None else b""
        return data if 0 < len(data) < LARGEST_CERTIFICATE else None

    @property
    def certificate_link(self) -> str:
        assert self.certificate_data is not None
        return "data:application/json;base64," + base64.b64encode(self.certificate_data).decode()

    def without_paths(self, text: str) -> str:
        """A sentence with files called by their names; the rest of a machine's paths is nobody's business."""
        for path in self.paths:
            for spelled in {str(path.resolve()), str(path.absolute()), str(path)}:
                if spelled != path.name:
                    text = text.replace(spelled, path.name)
        return text


def tell(
    found: Result | Recomputation | Pair | Splitting, *, settings: Mapping[str, object] | None = None, name: str | None = None
) -> Story:
    """The story of anything that commands find out.

    Parameters
    ----------
    found : Result, Recomputation, Pair or Splitting
    settings : mapping of str to object, optional
        Options that were given, for the provenance.
    name : str, optional
        What to call the artifact; the name of its file if not given.
    """
    from peakmem.report.pair import Pair
    from peakmem.transform.split import Splitting

    given = dict(settings or {})
    if isinstance(found, Result):
        return _of_result(found, given, name)
    if isinstance(found, Pair):
        return _of_pair(found, given, name)
    if isinstance(found, Splitting):
        return _of_splitting(found, given, name)
    return _of_recomputation(found, given, name)


def _of_result(result: Result, settings: Mapping[str, object], name: str | None) -> Story:
    expansion = result.schedule.expansion
    program = expansion.program if expansion is not None else result.source.program
    before = scheduled_timeline(result.source.program, {})
    after = scheduled_timeline(program, result.schedule.orders)
    return replace(
        _story(result, name, before, after, words.answer(result)),
        moved=tuple(_moved(program, after.order)),
        arenas=_arenas(result.source, result.model) or _planned(after, result.schedule.offsets),
        facts=_facts(result.source, result.model, result.verification, settings, name, result.unmeasured),
        proved=result.ordering.program,
        checks=_file(result.source),
        proof="Every order of the statements of this program",
    )


def _of_pair(pair: Pair, settings: Mapping[str, object], name: str | None) -> Story:
    result = pair.result
    before, after = timeline(result.source.program), timeline(result.model.program)
    called = f"{name or _name(result.source)} and {_name(result.model)}"
    return replace(
        _story(result, called, before, after, pair.answer),
        facts=_facts(result.source, result.model, result.verification, settings, name, result.unmeasured, pair=True),
        proved=result.model.program,
        checks=_file(result.model),
        proof=f"Every order of the statements in {_name(result.model)}",
        arenas=_arenas(result.source, result.model),
    )


def _story(result: Result, name: str | None, before: Timeline, after: Timeline, answer: str) -> Story:
    """What a result and a pair share."""
    check = result.verification
    certified = result.certificate is not None
    first, last, how = result.source.predicted_bytes, result.model.predicted_bytes, "predicted"
    if check is not None and check.baseline_bytes is not None and check.optimized_bytes is not None:
        first, last, how = check.baseline_bytes, check.optimized_bytes, "measured"
    quantity = result.source.quantity
    return Story(
        name=name or _name(result.source),
        answer=answer,
        heading=_heading(check),
        tiles=(
            Tile(f"{quantity} before", short(first), f"{in_bytes(first)}, {how}"),
            Tile(f"{quantity} after", short(last), f"{in_bytes(last)}, {how}"),
            _less(first, last),
            _bound_tile(result, last),
        ),
        lines=tuple(words.details(result)),
        notes=tuple(dict.fromkeys((*result.notes, *(check.notes if check else ())))),
        failures=check.failures if check else (),
        before=before,
        after=after,
        bounds=(_bound(result.lower_bound, certified, result.source),),
        scope=_scope(result.source),
        certificate=result.certificate,
        paths=_paths(result.source, result.model),
    )


def _of_recomputation(found: Recomputation, settings: Mapping[str, object], name: str | None) -> Story:
    from peakmem.transform.recompute import describe

    again, expansion = found.reordering, found.expansion
    program, orders = found.source.program, found.ordering.orders
    certificate = found.ordering.certificate
    if again is not None and expansion is not None:
        program, orders, certificate = expansion.program, again.orders, again.certificate
    before, after = scheduled_timeline(found.source.program, {}), scheduled_timeline(program, orders)
    check = found.verification
    first, least, floor = before.peak, found.ordering.peak, found.floor.size
    tiles = [Tile("live_peak before", short(first), in_bytes(first)), Tile("nothing run twice", short(least), in_bytes(least))]
    plans = [] if found.front is None else [p for p in found.front.points if p.plan.reruns]
    if again is not None and found.point is not None:
        spent = words.more(found.point.extra_macs, found.macs)
        tiles.append(Tile("with reruns", short(after.peak), f"{in_bytes(after.peak)} for {spent}"))
    elif plans:
        last = plans[-1]
        spent = words.more(last.extra_macs, found.macs)
        tiles.append(Tile("reruns reach", short(last.peak), f"{in_bytes(last.peak)} for {spent}"))
    tiles.append(Tile("floor", short(floor), f"{in_bytes(floor)}; no reruns go below", proved=True))
    lines = [] if check is None else words.comparison(check)
    lines.append(f"floor {human(floor)}: {found.floor.sentence(found.source.program, show=lambda n: shorten(clean(n)))}")
    if found.unrealized:
        lines.append(f"not realized: {found.unrealized}")
    elif found.model is not None and check is None:
        lines.append(f"not measured: {found.unmeasured}")
    lines.append(f"inputs: {found.source.input_rule}")
    reruns = describe(found.point.plan, show=lambda n: shorten(clean(n))) if found.point is not None else []
    bounds = [Bound(floor, "floor of every order and every rerun", floor=True)]
    if again is None:
        bounds.insert(0, _bound(found.ordering.lower_bound, certificate is not None, found.source))
    points = found.front.points if found.front is not None and plans else ()
    return Story(
        name=name or _name(found.source),
        answer=words.recomputed(found),
        heading=_heading(check),
        tiles=tuple(tiles),
        lines=tuple(lines),
        notes=found.notes,
        failures=check.failures if check else (),
        before=before,
        after=after,
        bounds=tuple(bounds),
        facts=_facts(found.source, found.model, check, settings, name, found.unmeasured or "nothing was rewritten"),
        proof="Every order of the enlarged program" if again is not None else "Every order without reruns",
        certificate=certificate,
        proved=program,
        moved=() if again is not None else tuple(_moved(program, after.order)),
        front=(tuple((p.extra_macs, p.peak, p.exact) for p in points), floor) if points else None,
        plan=tuple(reruns),
        scope=_scope(found.source),
        arenas=_arenas(found.source, found.model) if found.model is not None else (),
        checks="" if again is not None else _file(found.source),
        paths=_paths(found.source, found.model),
    )


def _of_splitting(found: Splitting, settings: Mapping[str, object], name: str | None) -> Story:
    from peakmem.transform.split import describe

    made = found.result
    points = found.search.points if found.search is not None else []
    front = tuple((p.extra_macs, p.peak, False) for p in points)
    unsplit = found.unsplit_bound
    if made is None:
        as_it_is = Result(found.source, found.source, found.ordering, Schedule({}), found.ordering.peak_before,
                          found.ordering.peak_before, found.measurement, found.seconds)  # fmt: skip
        story = replace(_of_result(as_it_is, settings, name), answer=words.split(found))
        return replace(story, front=(front, found.ordering.lower_bound) if front else None)
    assert found.split is not None and found.written is not None
    result = replace(made, source=found.source)
    before = scheduled_timeline(found.source.program, {})
    after = scheduled_timeline(found.written.program, result.schedule.orders)
    story = _story(result, name, before, after, words.split(found))
    bounds = [Bound(found.ordering.lower_bound, "certified lower bound of every order of the unsplit model")] if unsplit is not None else []
    spent = Tile("more MACs", words.share(found.split.extra_macs, found.macs), f"{found.split.extra_macs:,} of {found.macs:,}")
    return replace(
        story,
        tiles=(*story.tiles, spent),
        notes=found.notes,
        bounds=(*bounds, *(replace(b, label=f"{b.label} (split)") for b in story.bounds)),
        facts=_facts(found.source, result.model, result.verification, settings, name, result.unmeasured),
        proof="Every order of the statements of the split program",
        proved=result.ordering.program,
        front=(front, min(p.peak for p in points)) if points else None,
        plan=tuple(describe(found.split, found.source.program, show=lambda n: shorten(clean(n)))),
        arenas=_arenas(found.source, result.model),
    )


def _bound(size: int, certified: bool, source: Model) -> Bound:
    """The dashed line. The curves are of the live peak, and so is it."""
    what = "certified lower bound" if certified else "lower bound, without certificate,"
    beside = "" if source.bounded else f" (not of {source.quantity})"
    return Bound(size, f"{what} of every order{beside}")


def _scope(source: Model) -> str:
    """What else must be said where the realized quantity is not the live peak that proofs speak of."""
    if not source.bounded:
        return f"It is about the live_peak and says nothing about {source.quantity}."
    left_out = source.realized_offset
    return f"It is about the live_peak, which holds {human(left_out)} more than {source.quantity}." if left_out else ""


def _bound_tile(result: Result, reached: int) -> Tile:
    if not result.source.bounded:
        return Tile("lower bound", "unknown", "the runtime orders by itself")
    bound = result.realized_bound
    if bound > reached:  # the quantity leaves out bytes of the live peak and does not say which
        bound, reached = result.lower_bound, result.live_peak_after
    certified = result.certificate is not None
    kind = "certified" if certified else "no certificate"
    gap = ", reached" if reached == bound else f", gap {percent(reached - bound, reached)}"
    return Tile("lower bound", short(bound), f"{in_bytes(bound)}, {kind}{gap}", proved=certified and reached == bound)


def _heading(check: Verification | None) -> str:
    if check is None:
        return "Not measured"
    return f"{'Measured' if check.measured else 'Run'} on {check.runtime} {check.version}".rstrip()


def _less(before: int, after: int) -> Tile:
    if before == after:
        return Tile("change", "none", "the same bytes before and after")
    word = "fewer" if after < before else "more"
    amount = percent(after - before, before, sign="+") if before else in_bytes(after)
    return Tile("change", amount, f"{in_bytes(abs(after - before))} {word}")


def _arenas(source: Model, made: Model) -> tuple[tuple[str, Bars], ...]:
    """The arenas of two artifacts, if their frontend can tell; one if they are the same."""
    found = []
    for what, model in (("before", source), ("after", made)):
        blocks = arena(timeline(model.program), model.arena())
        if blocks.bars and blocks.steps:
            found.append((what, blocks))
    if len(found) == 2 and found[0][1] == found[1][1]:
        return (("before and after", found[0][1]),)
    return tuple(found)


def _planned(line: Timeline, offsets: Mapping[str, int] | None) -> tuple[tuple[str, Bars], ...]:
    blocks = arena(line, planned(line, offsets)) if offsets and line.order else None
    return (("after", blocks),) if blocks is not None and blocks.bars else ()


def _moved(program: Program, order: tuple[int, ...]) -> list[str]:
    from peakmem.model import moves

    found = moves(order)

    def named(v: int) -> str:
        return shorten(clean(program.statements[v].name))

    lines = []
    for move in found[:MOVES]:
        after = f"after {named(order[move.step - 1])}" if move.step else "first"
        lines.append(f"{named(move.statement)}: step {move.statement:,} -> {move.step:,}, {after}")
    if len(found) > MOVES:
        lines.append(f"and {len(found) - MOVES:,} more")
    return [f"moved {len(found):,} of {len(order):,} statements", *lines] if found else []


def _facts(
    source: Model, made: Model | None, check: Verification | None, settings: Mapping[str, object], name: str | None,
    unmeasured: str, *, pair: bool = False,
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    program = source.program
    facts = [("file", name or _name(source)), ("file digest", source.digest), ("program digest", program.digest)]
    if made is not None:
        facts += [("optimized file", _name(made))] if pair else []
        facts += [("optimized file digest" if pair else "rewritten file digest", made.digest)]
        facts += [("optimized program digest", made.program.digest)] if pair else []
    facts.append(("size of the program", f"{len(program):,} statements, {len(program.buffers):,} buffers"))
    facts.append(("frontend", f"{source.frontend} {frontend_version(source.frontend) or ''}".rstrip()))
    facts.append(("peakmem-core", _installed("peakmem-core")))
    ran = f"{check.runtime} {check.version}".rstrip() if check is not None else f"none: {unmeasured}"
    facts.append(("runtime", ran))
    for key, value in settings.items():
        facts.append((f"option {key}", _setting(value)))
    return tuple(facts)


def _setting(value: object) -> str:
    """An option's value without folders."""
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_setting, value))
    text = str(value)
    return text.replace("\\", "/").rpartition("/")[2] if isinstance(value, Path) or Path(text).is_absolute() else text


def _name(model: Model) -> str:
    return model.path.name if model.path is not None else model.program.name or "the program"


def _file(model: Model) -> str:
    return model.path.name if model.path is not None else "MODEL"


def _paths(*models: Model | None) -> tuple[Path, ...]:
    return tuple(m.path for m in models if m is not None and m.path is not None)


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed as a distribution"
