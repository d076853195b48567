"""The page: one HTML file that needs nothing else and may load nothing.

All text from artifacts passes through `peakmem.report.svg.word` (no control characters, everything escaped) or stands
in a JSON block whose ``<``, ``>`` and ``&`` are escapes. A content security policy allows exactly one style sheet and one
script, both by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Sequence
from importlib.resources import files

from peakmem.model import Timeline
from peakmem.report import data, figures
from peakmem.report.data import Curve, Live
from peakmem.report.front import front_drawing
from peakmem.report.groups import Group, groupings, makers
from peakmem.report.story import LARGEST_CERTIFICATE, Story
from peakmem.report.svg import Drawing, style, word
from peakmem.report.words import at_step, clean, percent, shorten
from peakmem.system.sizes import human, in_bytes, short

_SEPARATOR = re.compile(r"([/;:,._]+)(?=[A-Za-z0-9])")

LONGEST = 120
"""Characters of a name in the page; middles of longer ones are left out."""

LISTED = 5000
"""Buffers of an order, the largest, that a page can list for any step; statements that it can find by name."""

REASON = 600
"""Characters of a sentence that came from elsewhere."""


def page(stories: Sequence[Story]) -> str:
    """The HTML text, the same for the same stories; of several, a table of all stands first."""
    css = (files("peakmem.report") / "report.css").read_text("utf-8") + style()
    script = (files("peakmem.report") / "report.js").read_text("utf-8")
    policy = (
        f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    several = len(stories) > 1
    title = f"{len(stories)} models" if several else word(shorten(clean(stories[0].name), 80))
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>peakmem: {title}</title>",
        f"<style>{css}</style>",
        "</head>",
        "<body>",
        '<main class="several">' if several else "<main>",
        *(_overview(stories) if several else ()),
        *(line for k, story in enumerate(stories) for line in _article(story, k, several)),
        "</main>",
        f"<script>{script}</script>",
        "</body>",
        "</html>",
        "",
    ]
    return "\n".join(parts)


def _article(story: Story, k: int, several: bool) -> list[str]:
    """Everything about one model; of several, its headings are one level further down and its ids end in its number."""
    before, after = data.curve(story.before), data.curve(story.after)
    rows = [
        *_head(story, word(shorten(clean(story.name), 80))),
        *_groups(story),
        *_measured(story),
        *_memory(story, before, after),
        *_peaks(story),
        *_lifetimes(story),
        *_arena(story),
        *_reasons(story),
        *_front(story),
        *_moved(story),
        *_provenance(story),
    ]
    suffix = f"-{k + 1}" if several else ""
    text = "\n".join(rows)
    if several:  # all text from artifacts is escaped, so what looks like markup is ours
        text = re.sub(r"<(/?)h([1-5])\b", lambda m: f"<{m[1]}h{int(m[2]) + 1}", text)
        text = re.sub(r'(?<= id=")[^"]+', rf"\g<0>{suffix}", text)
        text = re.sub(r'(?<= aria-labelledby=")[^"]+', lambda m: " ".join(name + suffix for name in m[0].split()), text)
    numbered = f' id="model{suffix}"' if several else ""
    data_row = f'<script type="application/json" id="curves{suffix}">{_curves(story, before, after)}</script>'
    return [f'<article{numbered} data-suffix="{suffix}">', text, data_row, "</article>"]


def _overview(stories: Sequence[Story]) -> list[str]:
    """The models of the page, a row each, with what takes most of their peaks."""
    rows = []
    for k, story in enumerate(stories):
        found = groupings(story.after)
        most = found[0].groups[0] if found and found[0].groups else None
        who = f"{shorten(clean(most.name), 40)} {percent(most.size, story.after.peak)}" if most is not None else ""
        cells = "".join(f'<td class="number">{word(t.value)}</td>' for t in story.tiles[:3])
        name = _breakable(shorten(clean(story.name), 80))
        proved = any(t.proved for t in story.tiles)
        rows.append(
            f'<tr><td><a href="#model-{k + 1}">{name}</a></td>{cells}<td>{"certified optimal" if proved else "best found"}</td>'
            f'<td class="number">{len(story.before.order):,}</td><td>{word(who)}</td></tr>'
        )
    labels = [t.label for t in stories[0].tiles[:3]]
    shared = [label if all(s.tiles[i].label == label for s in stories) else ("before", "after", "change")[i] for i, label in enumerate(labels)]
    head = "".join(f'<th class="number">{word(label)}</th>' for label in shared)
    return [
        f"<header><h1>{len(stories)} models</h1></header>",
        '<section class="scroll"><table><thead><tr><th>model</th>' + head + '<th>known</th><th class="number">statements</th>'
        f'<th>most of the peak</th></tr></thead><tbody>{"".join(rows)}</tbody></table></section>',
    ]


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _section(title: str, *rows: str, kind: str = "") -> list[str]:
    return [f'<section class="{kind}">' if kind else "<section>", f"<h2>{title}</h2>", *rows, "</section>"]


def _head(story: Story, title: str) -> list[str]:
    tiles = "".join(
        f'<div class="{"proved" if t.proved else "plain"}"><dt>{word(t.label)}</dt><dd class="value">{word(t.value)}</dd>'
        f'<dd class="beside">{word(t.beside)}</dd></div>'
        for t in story.tiles
    )
    rows = [
        "<header>",
        f"<h1>{_whole(story.answer)}</h1>",
        f'<p class="soft">{title}, {len(story.before.order):,} statements</p>',
        f'<dl class="tiles">{tiles}</dl>',
        "</header>",
    ]
    if story.failures:
        rows += _section("What differs", _list(story, story.failures), kind="fault")
    return rows


def _measured(story: Story) -> list[str]:
    notes = ['<h3 class="soft">Notes</h3>', _list(story, story.notes)] if story.notes else []
    return _section(word(story.heading), _list(story, story.lines), *notes)


def _groups(story: Story) -> list[str]:
    """The first screen's answer to: what is it that takes the memory?"""
    found = groupings(story.after)
    if not found:
        return []
    line = story.after
    statement = line.program.statements[line.order[line.peak_step]]
    buffers = f"{sum(g.count for g in found[0].groups) + (found[0].rest.count if found[0].rest else 0):,}"
    where = f"{at_step(line.peak_step, len(line.order))}, {_name(statement.name)}"
    parts = [f'<p class="soft small">{word(where)}: {buffers} buffers, {in_bytes(found[0].size)} of {in_bytes(line.peak)}.</p>', '<div class="groups">']
    for grouping in found:
        rows = "".join(_group(g, line.peak) for g in (*grouping.groups, *((grouping.rest,) if grouping.rest else ())))
        head = f'<thead><tr><th>by {grouping.by}</th><th class="number">bytes</th><th class="number">share</th></tr></thead>'
        parts.append(f"<table>{head}<tbody>{rows}</tbody></table>")
    return _section("Who is live at the peak", *parts, "</div>")


def _group(group: Group, peak: int) -> str:
    name = _breakable(shorten(clean(group.name), 40))
    width = f"{100 * group.size / peak:.1f}"
    bar = f'<svg class="share peakmem" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect class="hot" width="{width}" height="4"/></svg>'
    return (
        f'<tr><td>{name} <span class="soft">x {group.count:,}</span>{bar}</td><td class="number">{short(group.size)}</td>'
        f'<td class="number">{percent(group.size, peak)}</td></tr>'
    )


def _whole(sentence: str) -> str:
    """A sentence whose changes in brackets are not broken over two lines."""
    return re.sub(r"\([^()]* %\)", r'<span class="whole">\g<0></span>', word(sentence))


def _list(story: Story, sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{word(shorten(story.without_paths(s), REASON))}</li>" for s in sentences)
    return f"<ul>{items}</ul>"


def _both(draw: Callable[..., Drawing], key: str) -> str:
    """A picture for wide and one for narrow windows."""
    wide, narrow = draw(figures.WIDE, f"{key}-wide"), draw(figures.NARROW, f"{key}-narrow")
    wide.kind += " wide"
    narrow.kind += " narrow"
    return f"{wide.inline()}\n{narrow.inline()}"


def _memory(story: Story, before: Curve, after: Curve) -> list[str]:
    drawn = _both(
        lambda width, key: figures.memory(before, after, story.bounds, title="Memory over steps", width=width, key=key, headed=False),
        "memory",
    )
    caption = "Bytes of live values while each step runs (live_peak is the highest), as peakmem models them."
    if before == after:
        caption += " The curves before and after are the same."
    if before.thinned or after.thinned:
        caption += (
            f" Of {max(before.steps, after.steps):,} steps, each column of the picture shows the first, the last, the "
            "lowest and the highest, so every peak is there."
        )
    now = "".join(_now(*each) for each in _drawn(before, after))
    return _section(
        "Memory over steps",
        "<figure>",
        f'<div class="stage" id="stage" role="group" aria-label="Memory over steps">{drawn}</div>',
        f'<div class="readout" id="readout" aria-live="polite">{now}</div>',
        '<div class="explore" id="explore" hidden><p><label>Find a buffer or statement <input type="search" id="find" '
        'autocomplete="off" spellcheck="false"></label> <span id="found" class="soft small" aria-live="polite"></span></p>'
        '<div class="hits" id="hits"></div><p class="zoom">Zoom <button type="button" id="closer">closer</button>'
        '<button type="button" id="wider">wider</button><button type="button" id="whole">all</button> '
        '<span id="span" class="soft small" aria-live="polite"></span></p><p><span id="pinned" aria-live="polite"></span> <button type="button" id="release" hidden>Release</button></p>'
        '<div class="sides" id="live"></div></div>',
        f'<figcaption>{caption} <span class="hint" id="hint" hidden>Point at a step, or focus the picture and use the arrow keys; a '
        "click or Enter pins the step and lists what is live there, Escape releases it; + and - zoom at the step, 0 shows all.</span>"
        "</figcaption>",
        "</figure>",
    )


def _drawn(before: Curve, after: Curve) -> list[tuple[str, Curve, str]]:
    """The curves as they are drawn: colour, steps, and what they are called."""
    if before == after:
        return [("after", after, "before and after")]
    return [("before", before, "before"), ("after", after, "after")]


def _now(name: str, curve: Curve, called: str) -> str:
    """The readout without scripts: the peak."""
    top = curve.top
    what, size, largest = "no statements: ", in_bytes(curve.peak), ""
    if top is not None:
        what = f"peak at {at_step(top.step, curve.steps)}, {shorten(clean(top.statement))}: "
        largest = "largest live: " + ", ".join(f"{shorten(clean(n))} ({in_bytes(s)})" for n, s in top.largest)
    return (
        f'<div data-curve="{name}"><span class="key {name}"></span>{called}: <span class="what">{word(what)}</span>'
        f'<b class="size">{size}</b><br><span class="largest soft">{word(largest)}</span></div>'
    )


def _lives(line: Timeline, number: Callable[[str], int]) -> dict[str, object]:
    """Of one order, what is live when: name, operator, bytes, first and last step of each buffer, largest first."""
    buffers = line.program.buffers
    made = makers(line)
    ranked = [b for b in sorted(range(len(buffers)), key=lambda b: (-buffers[b].size, b)) if buffers[b].size and line.first[b] <= line.last[b]]
    ranked = [b for b in ranked if buffers[b].kind != "constant"]
    shown = [[number(buffers[b].name), number(made[b]), buffers[b].size, line.first[b], line.last[b]] for b in ranked[:LISTED]]
    steps = [number(line.program.statements[v].name) for v in line.order] if len(line.order) <= LISTED else []
    return {"live": shown, "left": len(ranked) - len(shown), "order": steps}


def _curves(story: Story, before: Curve, after: Curve) -> str:
    """The data of the readout, as JSON that no text can end; every name once."""
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(shorten(clean(name)), len(names))

    rows = [
        {
            "name": name,
            "steps": curve.steps,
            "called": called,
            "moments": [[m.step, m.size, number(m.statement), [[number(n), s] for n, s in m.largest]] for m in curve.moments],
            **_lives(line, number),
        }
        for (name, curve, called), line in zip(_drawn(before, after), (story.before, story.after) if before != after else (story.after,))
        if curve.steps
    ]
    document = {"steps": max(before.steps, after.steps), "start": after.peak_step, "curves": rows, "names": list(names)}
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _name(name: str) -> str:
    return shorten(clean(name), LONGEST)


def _breakable(name: str) -> str:
    """A name that may be broken after its separators rather than anywhere."""
    return _SEPARATOR.sub(r"\1<wbr>", word(name))


def _peaks(story: Story) -> list[str]:
    sides = [("before", data.live(story.before)), ("after", data.live(story.after))]
    if sides[0][1] == sides[1][1]:
        sides = [("before and after", sides[0][1])]
    kind = "sides" if len(sides) > 1 else ""
    return _section("At the peak", f'<div class="{kind}">', *(_table(name, found) for name, found in sides), "</div>")


def _table(name: str, found: Live) -> str:
    if found.step is None:
        where = "resident at entry, no statements"
    else:
        op = f" ({_name(found.op)})" if found.op and found.op not in found.statement else ""
        where = f"step {found.step:,}, {_name(found.statement)}{op}"

    def row(label: str, size: int, beside: str = "") -> str:
        shown = f'<br><span class="soft small">{word(beside)}</span>' if beside else ""
        share = percent(size, found.peak)
        return f'<tr><td>{_breakable(label)}{shown}</td><td class="number">{in_bytes(size)}</td><td class="number">{share}</td></tr>'

    rows = []
    for r in found.rows:
        since = "entry" if r.first < 0 else f"step {r.first:,}"
        until = "the end" if r.last < 0 else f"{r.last:,}" if r.first >= 0 else f"step {r.last:,}"
        rows.append(row(_name(r.name), r.size, f"{r.kind}, {since} to {until}"))
    if found.left_out:
        rows.append(row(f"{found.left_out:,} smaller ones", found.left_out_bytes))
    if found.workspace:
        rows.append(row("workspace of the statement", found.workspace))
    if found.saved:
        rows.append(row("less: the output on top of a dying input", -found.saved))
    key = f'<span class="key {name}"></span>' if name in ("before", "after") else ""
    return (
        f'<div><h3>{key}{name}: {human(found.peak)}</h3><p class="soft small">{word(where)}</p><div class="scroll"><table>'
        '<thead><tr><th>live there</th><th class="number">bytes</th><th class="number">share</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody>"
        f'<tfoot><tr><td>together</td><td class="number">{in_bytes(found.peak)}</td><td class="number">100 %</td></tr></tfoot>'
        "</table></div></div>"
    )


def _lifetimes(story: Story) -> list[str]:
    found = data.bars(story.after)
    if not found.bars or not found.steps:
        return []
    drawn = _both(lambda width, key: figures.lifetimes(found, title="Lifetimes, after", width=width, key=key, headed=False), "lifetimes")
    left = (
        f" The largest of those live at the peak are shown, and a few of the largest others; {found.left_out:,} buffers with "
        f"{in_bytes(found.left_out_bytes)} in sum are left out."
        if found.left_out
        else ""
    )
    caption = f"Each bar is one buffer, from its birth to its last use, in the order after.{left}"
    return _section("Lifetimes", f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>")


def _arena(story: Story) -> list[str]:
    if not story.arenas:
        return []
    top = max(blocks.height for _, blocks in story.arenas)
    rows: list[str] = []
    for what, blocks in story.arenas:
        drawn = _both(
            lambda width, key, blocks=blocks, what=what: figures.arena(
                blocks, title=f"The arena {what}", width=width, key=key, headed=False, top=top
            ),
            "arena-" + what.replace(" ", "-"),
        )
        caption = ""
        if blocks.left_out:
            caption += f"{blocks.left_out:,} smaller ones with {in_bytes(blocks.left_out_bytes)} in sum are left out. "
        if blocks.unplaced:
            caption += f"{blocks.unplaced:,} buffers or workspaces have no known place and are not drawn. "
        note = f"<figcaption>{caption}</figcaption>" if caption else ""
        rows += [f'<h3><span class="key {what}"></span>{what}: {human(blocks.height)}</h3>', f"<figure>{drawn}{note}</figure>"]
    rows.append('<p class="soft small">Each rectangle is one buffer at its place: steps across, addresses up.</p>')
    return _section("The arena", *rows)


def _reasons(story: Story) -> list[str]:
    if story.certificate is None:
        return _section("Nothing is proved", "<p>There is no certificate, so a better order may exist.</p>", kind="reasons")
    preface = f"{story.proof} was considered. What follows is read off the certificate, which the checker accepted. {story.scope}"
    rows = [f'<p class="soft small">{word(preface.strip())}</p>']
    depth = 0
    for sentence in story.reasons:
        level = (len(sentence) - len(sentence.lstrip(" "))) // 2
        if level > depth:  # inside the item above, which is still open
            rows.append("<ul>" + "<li><ul>" * (level - depth - 1))
        elif depth:
            rows.append("</li></ul>" * (depth - level) + ("</li>" if level else ""))
        depth = level
        text = word(shorten(sentence.strip(), 2000))
        rows.append(f"<li>{text}" if level else f"<p>{text}</p>")
    title = f"Why no order needs less than {human(story.certificate.lower_bound)}"
    return _section(title, *rows, "</li></ul>" * depth, kind="reasons")


def _front(story: Story) -> list[str]:
    if story.front is None:
        return []
    points, floor = story.front
    drawn = _both(
        lambda width, key: front_drawing(points, floor=floor, title="Memory for extra MACs", width=width, key=key, headed=False), "front"
    )
    caption = "What each live peak costs in multiply-accumulates run again."
    rows = [f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>"]
    if story.plan:
        rows += ["<h3>The plan that was chosen</h3>", _list(story, story.plan[:40])]
        if len(story.plan) > 40:
            rows.append(f"<p>and {len(story.plan) - 40:,} more reruns</p>")
    return _section("Running operators twice", *rows)


def _moved(story: Story) -> list[str]:
    return _section(word(story.moved[0].capitalize()), _list(story, story.moved[1:])) if story.moved else []


def _provenance(story: Story) -> list[str]:
    facts = "".join(f"<tr><th>{word(k)}</th><td>{word(shorten(story.without_paths(v), REASON))}</td></tr>" for k, v in story.facts)
    rows = [f'<table class="facts"><tbody>{facts}</tbody></table>']
    if story.certificate is not None:
        size = len(story.certificate.to_bytes())
        if story.certificate_data is not None:
            file = shorten(clean(story.checks or "program"), 80) + ".certificate.json"
            rows.append(
                f'<p>The certificate is in this page: <a id="certificate" download="{word(file)}" '
                f'href="{story.certificate_link}">{word(file)}</a> ({in_bytes(size)}).'
            )
        else:
            rows.append(
                f"<p>The certificate has {in_bytes(size)}, more than the {in_bytes(LARGEST_CERTIFICATE)} that fit here, and is left out; "
                "<code>peakmem certify</code> with <code>-o CERT</code> writes it."
            )
            file = "CERT"
        if story.checks:
            line = shlex.join(["peakmem", "check", shorten(clean(story.checks), LONGEST), file])
            rows.append(f" To check it: <code>{word(line)}</code>, with the same options of the frontend.</p>")
        else:
            rows.append(
                " It is about the enlarged program, which no command writes; from Python: "
                "<code>peakmem.proof.check(found.expansion.program, document)</code>.</p>"
            )
    return _section("Where this comes from", *rows)
