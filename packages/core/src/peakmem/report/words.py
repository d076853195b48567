"""The sentences of an answer, for every screen and page. Every word about proof is chosen here.

``certified optimal``: a certificate that our checker accepted, and the realized quantity reaches its bound. ``with overlays``: the
program permits some, and the proof is about every way to use them too.
``best found``: no proof that it is the least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peakmem.system.sizes import human, in_bytes

if TYPE_CHECKING:
    from peakmem.frontends import Verification
    from peakmem.result import Result
    from peakmem.transform.recompute import Recomputation
    from peakmem.transform.split import Splitting

NOTHING_VARIED = "no compared value varied over the inputs that were tried: the comparison shows nothing"

UNPRICED = "an unknown price (no statement says how many MACs it takes)"
"""What reruns cost in a program without prices."""

LONGEST_NAME = 48
"""Characters of a name in a table or sentence for people; JSON has it whole."""


def change(before: int, after: int) -> str:
    """``(-43.3 %)``, or ``(unchanged)``."""
    if before == after:
        return "(unchanged)"
    if before == 0:
        return f"({after:+,} B)"
    return f"({percent(after - before, before, sign='+')})"


def at_step(step: int, steps: int) -> str:
    """A step among all: counted from 0, as JSON does, files number their operators, and names such as ``14:CONV_2D`` say."""
    return f"step {step:,} of 0..{steps - 1:,}"


def percent(part: int, whole: int, *, sign: str = "") -> str:
    """``43.3 %``; never 0.0 for what is not zero."""
    value = 100 * part / whole if whole else 0.0
    digits = 1
    while part and abs(value) < 0.5 * 10**-digits and digits < 12:
        digits += 1
    return f"{value:{sign}.{digits}f} %"


def proof(reached: int, bound: int, *, certified: bool, overlays: bool = False) -> str:
    """``certified optimal``, or what is known instead; ``overlays``: whether the program that the proof is about has some."""
    if certified and reached == bound:
        return optimal(overlays)
    kind = "certified lower bound" if certified else "lower bound"
    return f"best found, {kind} {human(bound)}, gap {percent(reached - bound, reached)}"


def optimal(overlays: bool) -> str:
    """``certified optimal``, and over what: orders alone, or orders and ways to write outputs on top of dying inputs."""
    return "certified optimal with overlays" if overlays else "certified optimal"


def answer(result: Result, *, known: str | None = None) -> str:
    """The first line of ``optimize``: realized quantity before and after, proof (or ``known``), measured or predicted."""
    check = result.verification
    if check is not None and check.baseline_bytes is not None and check.optimized_bytes is not None:
        before, after = check.baseline_bytes, check.optimized_bytes
        source = f"measured on {check.runtime} {check.version}".rstrip()
    else:
        before, after = result.source.predicted_bytes, result.model.predicted_bytes
        source = "predicted"
    if check is not None and check.identical:
        source += ", outputs bitwise identical"
    known = known or _known(result, after)
    asked = f"{check.headline}; " if check is not None and check.headline else ""
    return f"{asked}{result.source.quantity} {human(before)} -> {human(after)} {change(before, after)}, {known}; {source}"


def _known(result: Result, reached: int) -> str:
    about = {"certified": result.certificate is not None, "overlays": result.overlays}
    if not result.source.bounded:
        return "best found, no bound known"
    if result.realized_bound > reached:  # the quantity leaves out bytes of the live peak and does not say which
        return f"order {proof(result.live_peak_after, result.lower_bound, **about)}"
    return proof(reached, result.realized_bound, **about)


def details(result: Result) -> list[str]:
    """The lines under the answer of ``optimize``."""
    check = result.verification
    lines = [*result.model.advice]
    left_out = result.source.realized_offset
    if left_out:
        lines.append(f"{result.source.quantity} leaves out {human(left_out)} of the live_peak")
    live = (result.live_peak_before, result.live_peak_after)
    if live != (result.source.predicted_bytes + left_out, result.model.predicted_bytes + left_out):
        known = ", " + proof(
            result.live_peak_after, result.lower_bound, certified=result.certificate is not None, overlays=result.overlays
        )
        known = known if result.source.bounded else ""  # the proof speaks of orders that the runtime may not run
        lines.append(f"live_peak {human(live[0])} -> {human(live[1])} {change(*live)}{known}")
    if check is None:
        lines.append(f"not measured: {result.unmeasured}")
    else:
        lines += comparison(check)
    lines.append(f"inputs: {result.source.input_rule}")
    if result.ordering.interrupted:
        lines.append("the search ended early, by its time limit or Ctrl-C; this is the best so far")
    return lines


def comparison(check: Verification) -> list[str]:
    """What was compared and how that ended, for commands that rewrite an artifact."""
    lines = []
    if check.measured and not check.as_predicted:
        lines.append(
            "measured and predicted differ: "
            f"predicted {size_or_unknown(check.baseline_predicted)} -> {size_or_unknown(check.predicted_bytes)}, "
            f"measured {size_or_unknown(check.baseline_bytes)} -> {size_or_unknown(check.optimized_bytes)}"
        )
    if check.compared:
        same = {True: "bitwise identical", False: "NOT identical", None: "not compared"}[check.bitwise_identical]
        lines.append(f"{check.compared}: {same}")
    if check.varied is False:
        lines.append(NOTHING_VARIED)
    return lines


def share(macs: int, whole: int) -> str:
    """``0.438 %``."""
    return f"{100 * macs / whole:.3f} %" if whole else "-"


def more(macs: int, whole: int) -> str:
    """``0.438 % more MACs``; their number where the program has none to be a share of, and what is unknown said to be so."""
    if whole or macs:
        return f"{share(macs, whole)} more MACs" if whole else f"{macs:,} more MACs"
    return UNPRICED


def recomputed(found: Recomputation) -> str:
    """The first line of ``recompute``."""
    peak = found.ordering.peak
    if found.at_floor:
        return f"live_peak {human(peak)} is at the floor: recomputation cannot help"
    point = found.point
    if point is None or not point.plan.reruns:
        last = found.front.points[-1] if found.front is not None else None
        if last is None or not last.plan.reruns:
            ruled_out = found.front is not None and found.front.complete
            budget = found.problems[0].max_extra_macs
            within = "" if budget is None else f" within {more(budget, found.macs)}"
            known = f"no plan of the base orders tried lowers it{within}" if ruled_out else "no plan found that lowers it"
            return f"live_peak {human(peak)}: {known}"
        plans = sum(1 for p in found.front.points if p.plan.reruns) if found.front else 0
        return (
            f"live_peak {human(peak)} -> down to {human(last.peak)} {change(peak, last.peak)} "
            f"for up to {more(last.extra_macs, found.macs)}, {plans} plan{'s' if plans != 1 else ''}"
        )
    after = point.peak if found.reordering is None else found.reordering.peak
    size = f"{human(point.peak)} in " if after != point.peak else ""
    known = f"exact for {size}its base order" if point.exact else f"best found, at least {point.lower_bound:,} MACs needed"
    check = found.verification
    spent = f"{more(point.extra_macs, found.macs)} ({point.extra_macs:,}), {known}"
    if check is not None and check.baseline_bytes is not None and check.optimized_bytes is not None:
        same = ", outputs bitwise identical" if check.identical else ""
        before, reached = check.baseline_bytes, check.optimized_bytes
        return (
            f"{check.quantity} {human(before)} -> {human(reached)} {change(before, reached)} for {spent}; "
            f"measured on {check.runtime} {check.version}{same}"
        )
    return f"live_peak {human(peak)} -> {human(after)} {change(peak, after)} for {spent}; predicted"


def split(found: Splitting) -> str:
    """The first line of ``split``."""
    quantity, now = found.source.quantity, found.source.predicted_bytes
    made = found.result
    if made is None or found.split is None:
        lowest = min(found.search.points, key=lambda p: p.peak, default=None) if found.search is not None else None
        if lowest is not None and lowest.peak < found.ordering.peak and not found.reason:
            return (
                f"live_peak {human(found.ordering.peak)} -> down to {human(lowest.peak)} {change(found.ordering.peak, lowest.peak)} "
                f"for {cost(lowest.extra_macs, found.macs)}; predicted"
            )
        why = found.reason or "no split was asked for"
        ordered = found.ordering.peak - found.source.realized_offset
        lever = f"; another order needs {human(ordered)} (peakmem optimize)" if ordered < now else ""
        return f"{quantity} {human(now)}, not split: {why}{lever}"
    check = found.verification
    before, after, source = now, made.model.predicted_bytes, "predicted"
    if check is not None and check.baseline_bytes is not None and check.optimized_bytes is not None:
        before, after, source = check.baseline_bytes, check.optimized_bytes, "measured"
    if check is not None and check.identical:
        source += ", outputs bitwise identical"
    known = proof(after, made.realized_bound, certified=made.certificate is not None)
    about = ("for this split" if found.split.regions else "without a split") + ", over all orders" + (" and overlays" if made.overlays else "")
    spent = cost(found.split.extra_macs, found.macs)
    asked = f"{check.headline}; " if check is not None and check.headline else ""
    return (
        f"{asked}{quantity} {human(before)} -> {human(after)} {change(before, after)} for {spent}, {beside_unsplit(found, after)}; "
        f"{known} {about}; {source}"
    )


def beside_unsplit(found: Splitting, reached: int) -> str:
    """How the bytes that were reached stand to what orders of the unsplit model need."""
    bound, best = found.unsplit_bound, found.ordering.peak - found.source.realized_offset
    if found.unsplit_optimal:
        where = "below" if reached < best else "at" if reached == best else "not below"
        over = " with overlays" if found.ordering.program.has_overlays else ""
        return f"{where} the certified optimum of the unsplit model{over} ({in_bytes(best)})"
    if bound is not None and reached < bound:
        return f"below what every order of the unsplit model needs (certified {in_bytes(bound)} or more)"
    return f"beside {in_bytes(best)} in the best order found of the unsplit model"


def cost(macs: int, whole: int) -> str:
    """``0.66 % more MACs``, or ``no more MACs``."""
    if not whole and not macs:
        return UNPRICED
    if not macs:
        return "no more MACs"
    return f"{100 * macs / whole:.2f} % more MACs" if whole and 100 * macs / whole >= 0.005 else f"{macs:,} more MACs"


def size_or_unknown(size: int | None) -> str:
    """A size for people, or ``unknown``."""
    return "unknown" if size is None else human(size)


def clean(text: str) -> str:
    """Text from a file without what could steer a terminal: control characters become escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def clip(text: str, width: int) -> str:
    """At most ``width`` characters, the first ones."""
    return text if len(text) <= width else text[: width - 3] + "..."


def shorten(name: str, width: int = LONGEST_NAME) -> str:
    """At most ``width`` characters of a name, from both ends: exporters tell layers apart by the last ones."""
    if len(name) <= width:
        return name
    end = (width - 3) // 2
    return name[: width - 3 - end] + "..." + name[len(name) - end :]
