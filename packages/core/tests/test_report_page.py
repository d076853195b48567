"""The page and its pictures: well formed, escaped, the same every time, and honest about what is not known."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import peakmem
import pytest
from generators import ladder
from oracles import build, programs
from peakmem import report
from peakmem.api import certify, optimize
from peakmem.frontends import Measurement, Verification
from peakmem.frontends.programfile import ProgramModel
from peakmem.model import Buffer, Program, Refused, Statement, UsageError, timeline
from peakmem.proof import check
from peakmem.report import FIGURES, figure, figures, render
from peakmem.report.data import arena, bars, curve
from peakmem.report.story import LARGEST_CERTIFICATE, tell
from peakmem.report.svg import Drawing, fit, marks, style, ticks, word
from peakmem.report.words import answer
from peakmem.transform.recompute import recompute

VOID = {"meta", "br", "wbr", "input"}

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)", "</title></svg><script>alert(2)",
    "a\u202egnp.exe", "nul\x00bell\x07esc\x1b[31m", "x" * 10_000, "</script><!--", "&amp;&lt;", "\u2028\u2029line", "${evil}`",
    "]]>", "\\u003cb>", "https://example.com/x", "日本語" * 20,
)  # fmt: skip


class Page(HTMLParser):
    """Checks that elements nest, and collects what matters."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs), f"<{tag}> has an attribute twice"
        self.seen.append((tag, given))
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(t) for tag, t in self.texts.items() if tag not in ("script", "style"))


def model(program: Program, path: Path | None = None) -> ProgramModel:
    return ProgramModel(program, path, "sha256:" + "0" * 64)


def wide() -> Program:
    return build(
        "@x=64 a=512 b=512 c=512 d=16 e=16 f=16 !y=8",
        "A x > a", "B x > b", "C x > c", "D a > d | after A", "E b > e | after B", "F c > f | after C", "G d e f > y | after D E F",
    )  # fmt: skip


def hostile() -> Program:
    buffers = (Buffer("in", 64, "input"), *(Buffer(name, 1000 + 16 * i) for i, name in enumerate(HOSTILE)))
    makers = tuple(Statement("S" + name, name, (0,), (i + 1,)) for i, name in enumerate(HOSTILE))
    last = Statement("join " + HOSTILE[0], "<b>", tuple(range(1, len(buffers))), (), tuple(range(len(makers))))
    return Program(buffers, (*makers, last), HOSTILE[3])


def checked(text: str) -> Page:
    """The page as a parser sees it: everything inside, nothing from elsewhere, one style sheet and one script."""
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids), "an id stands twice"
    tags = [tag for tag, _ in page.seen]
    assert tags.count("style") == 1 and tags.count("script") == 2
    assert not {"link", "img", "iframe", "object", "embed", "form", "base", "image", "use", "foreignobject"} & set(tags)
    for tag, given in page.seen:
        assert not [name for name in given if name.startswith("on") or name == "style"], (tag, given)
        assert not {"src", "srcset", "action", "xlink:href"} & set(given), (tag, given)
        if "href" in given:
            assert tag == "a" and str(given["href"]).startswith("data:application/json;base64,")
    policy = next(str(g["content"]) for t, g in page.seen if g.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        digest = base64.b64encode(hashlib.sha256(page.texts[tag][-1].encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]", text)
    return page


def test_the_first_line_is_the_answer_of_the_command_in_its_very_words() -> None:
    result = optimize(model(wide(), Path("/somewhere/else/net.json")), measure=False)
    page = checked(render(result))
    inside = re.search(r"<h1>(.*?)</h1>", render(result))
    assert inside is not None
    shown = re.sub(r"<[^>]*>", "", inside[1]).replace("&gt;", ">")
    assert shown == answer(result) == "live_peak 1,600 B -> 608 B (-62.0 %), certified optimal; predicted"
    for needed in ("net.json", "1,600 B", "608 B", "certified lower bound of every order", "not run (measuring was turned off)"):
        assert needed in page.text
    assert "somewhere" not in render(result)


def test_pages_are_the_same_whatever_the_hash_seed() -> None:
    code = (
        "import hashlib, sys; sys.path[:0] = sys.argv[1:]\n"
        "from test_report_page import hostile, model, ladder, optimize, recompute, render\n"
        "texts = [render(optimize(model(hostile()), measure=False)), render(recompute(model(ladder(2, 3)), measure=False))]\n"
        "print([hashlib.sha256(t.encode()).hexdigest() for t in texts])\n"
    )
    seen, here = set(), Path(__file__).parent
    for seed in ("0", "1", "random"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(here), str(here.parents[1] / "check" / "tests")], capture_output=True, text=True,
            check=True, timeout=600, env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        seen.add(done.stdout)
    assert len(seen) == 1


def test_hostile_names_neither_break_the_page_nor_get_into_it() -> None:
    result = optimize(model(hostile(), Path("h<b>\"'&.json")), measure=False)
    text = render(result, settings={"--odd": '<i>"', "--file": Path("/home/me/secret/x.json")})
    page = checked(text)
    assert "alert(1)" in page.text and "<script>alert" not in text and "x" * 200 not in text
    assert "\\u202egnp.exe" in page.text and "secret" not in text and "x.json" in page.text
    data = json.loads("".join(page.texts["script"][:1]))
    assert any("<script>" in name for name in data["names"])
    for kind in ("memory", "lifetimes"):
        root = ET.fromstring(figure(result, kind))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not [e for e in root.iter() if e.tag.rpartition("}")[2] in ("script", "img", "image", "a", "foreignObject")]


def test_pages_of_random_programs_are_well_formed() -> None:
    for i, program in programs(710, 60, range(8)):
        result = optimize(model(program), measure=False)
        page = checked(render(result))
        data = json.loads(page.texts["script"][0])
        before = timeline(program)
        if len(program):
            line = data["curves"][0]
            assert [m[1] for m in line["moments"]] == list(before.bytes_at), i


def test_every_figure_is_a_picture_with_a_name_for_screen_readers() -> None:
    result = recompute(model(ladder(2, 3)), max_extra_macs="100%", measure=False)
    for kind in ("memory", "lifetimes", "front"):
        data = figure(result, kind, name="a <name>")
        root = ET.fromstring(data)
        ids = (root.get("aria-labelledby") or "").split()
        assert root.get("role") == "img" and len(ids) == 2
        labels = {e.get("id"): e.text for e in root if e.get("id")}
        assert all(labels[i] for i in ids) and "a <name>" in str(labels[ids[0]])
        assert b"prefers-color-scheme:dark" in data and b"<text" in data
        box = [float(v) for v in str(root.get("viewBox")).split()]
        for e in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(str(e.get("x"))) <= box[2] and 0 <= float(str(e.get("y"))) <= box[3]
        assert figure(result, kind, name="a <name>") == data
    with pytest.raises(UsageError, match="did you mean 'memory'"):
        figure(result, "memry")
    with pytest.raises(Refused, match="no offsets"):
        figure(result, "arena")
    with pytest.raises(Refused, match="front: there is none"):
        figure(optimize(model(wide()), measure=False), "front")
    assert set(FIGURES) == {"memory", "lifetimes", "arena", "front"}


def drawn(picture: Drawing, kind: str) -> list[float]:
    """The heights of a curve's path, in pixels from the top."""
    (row,) = [row for row in picture.rows if f'class="line {kind}"' in row]
    found = re.search(r' d="M[\d.]+ ([\d.]+)(.*?)"', row)
    assert found is not None
    return [float(found[1]), *(float(v) for v in re.findall(r"V([\d.]+)", found[2]))]


def test_the_path_reaches_the_peak_and_never_passes_it() -> None:
    for _, program in programs(711, 80, range(1, 11)):
        result = optimize(model(program), measure=False)
        before, after = timeline(program), timeline(result.model.program)
        picture = figures.memory(curve(before), curve(after), title="t")
        top = max(before.peak, after.peak, 1) * 1.04
        upper, foot = float(str(picture.data["top"])), float(str(picture.data["foot"]))
        for kind, line in (("before", before), ("after", after)):
            if kind == "before" and curve(before) == curve(after):
                continue
            highest = min(drawn(picture, kind))
            assert abs((foot - highest) / (foot - upper) * top - line.peak) <= top * 0.06 / (foot - upper)


def test_large_programs_stay_small_and_say_what_is_left_out() -> None:
    n = 20_000
    buffers = (Buffer("x", 8, "input"), *(Buffer(f"layer/{i}/a_name_as_exporters_write_them", 1 + i * 37 % 991) for i in range(n)))
    statements = tuple(
        Statement(f"statement/{i}/a_name_as_exporters_write_them", "op", (i,), (i + 1,), (i - 1,) if i else ()) for i in range(n)
    )
    source = model(Program(buffers, statements))
    ordering = certify(source, time_limit=0.01)
    found = report.pair.Pair(_result(source, ordering))
    text = render(found)
    page = checked(text)
    assert len(text.encode()) < 2_000_000
    assert f"{n + 1 - 40:,} buffers with" in page.text and "each column of the picture" in page.text
    data = json.loads(page.texts["script"][0])
    assert max(m[1] for m in data["curves"][0]["moments"]) == timeline(source.program).peak
    blocks = arena(timeline(source.program), [("buffer", b.name, 0, b.size) for b in buffers])
    assert len(figures.arena(blocks, title="t").document()) < 400_000
    assert blocks.left_out == n + 1 - len(blocks.bars)


def _result(source: ProgramModel, ordering: Any) -> Any:
    from peakmem.model import Schedule
    from peakmem.result import Result

    peak = timeline(source.program).peak
    return Result(source, source, ordering, Schedule({}), peak, peak)


def test_nothing_is_claimed_without_a_certificate() -> None:
    result = optimize(model(wide()), measure=False)
    result = replace(result, ordering=replace(result.ordering, certificate=None))
    page = checked(render(result))
    assert "There is no certificate" in page.text and "certified" not in page.text.replace("no certificate", "")
    assert "lower bound, without certificate, of every order" in page.text


def test_what_differs_stands_at_the_top() -> None:
    check_ = Verification("toy", "1", "live_peak", 1600, 700, 1600, 608, False, "all 3 outputs", ("output 'y' <differs>",))
    result = replace(optimize(model(wide()), measure=False), measurement=Measurement(check_, ""))
    text = render(result)
    page = checked(text)
    assert "What differs" in page.text and "output 'y' <differs>" in page.text and "NOT identical" in page.text
    assert text.index("What differs") < text.index("Memory over steps")
    assert "measured on toy 1" in page.text and "bitwise identical" not in page.text.replace("NOT identical", "")


def test_the_certificate_in_the_page_is_the_one_that_the_checker_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(wide(), Path("net.json"))
    result = optimize(source, measure=False)
    page = checked(render(result))
    link = next(str(given["href"]) for tag, given in page.seen if tag == "a")
    document = json.loads(base64.b64decode(link.partition(",")[2]))
    assert check(source.program, document).lower_bound == 608
    assert "peakmem check net.json net.json.certificate.json" in page.text
    assert result.certificate is not None and len(result.certificate.to_bytes()) < LARGEST_CERTIFICATE
    monkeypatch.setattr("peakmem.report.story.LARGEST_CERTIFICATE", 10)
    left_out = checked(render(result))
    assert "is left out" in left_out.text and not [1 for tag, _ in left_out.seen if tag == "a"]


def test_a_program_without_statements_and_one_without_bytes() -> None:
    empty = Program((Buffer("x", 9, "input", True), Buffer("y", 5, "input")), ())
    page = checked(render(optimize(model(empty), measure=False)))
    assert "9 B resident at entry, no statements" in page.text
    nothing = Program((Buffer("x", 0, "input"), Buffer("y", 0)), (Statement("S", reads=(0,), writes=(1,)),))
    checked(render(optimize(model(nothing), measure=False)))
    huge = Program((Buffer("x", 2**61, "input"), Buffer("y", 2**60)), (Statement("S", reads=(0,), writes=(1,)),))
    assert "3,458,764,513,820,540,928 B" in checked(render(optimize(model(huge), measure=False))).text


def test_a_recomputation_shows_its_front_and_its_plan() -> None:
    found = recompute(model(ladder(2, 3)), max_extra_macs="100%", measure=False)
    assert found.point is not None and found.front is not None
    page = checked(render(found))
    for needed in ("Running operators twice", "The plan that was chosen", "floor of every order and every rerun", "extra MACs"):
        assert needed in page.text
    assert page.text.count("exact for its base order") >= len(found.front.points)
    unasked = checked(render(recompute(model(wide()), measure=False)))
    assert "Running operators twice" not in unasked.text  # no plan lowers it, so there is nothing to draw


def test_two_files_are_compared_as_they_are() -> None:
    source = model(wide(), Path("a.json"))
    better = model(optimize(source, measure=False).model.program, Path("b.json"))
    pair = report.compare(source, better, measure=False)
    assert pair.answer == "live_peak 1,600 B -> 608 B (-62.0 %), certified optimal; predicted"
    page = checked(render(pair))
    assert "Every order of the statements in b.json" in page.text and "peakmem check b.json" in page.text
    worse = report.compare(better, source, measure=False)
    assert worse.answer == (
        "live_peak 608 B -> 1,600 B (+163.2 %), an order with a live_peak of 608 B exists, certified optimal; predicted"
    )
    assert not worse.result.optimal
    with pytest.raises(UsageError, match=r"b\.json: is no version of a\.json: bytes resident at entry 64 instead of 0"):
        report.compare(source, ProgramModel(better.program, better.path, quantity="bytes_above_entry"), measure=False)


def test_a_quantity_that_no_bound_speaks_of_is_never_called_bounded() -> None:
    class Loose(ProgramModel):
        bounded = False
        input_rule = "inputs stay"

    loose = Loose(wide(), None, "sha256:" + "0" * 64, quantity="session_bytes")
    page = checked(render(optimize(loose, measure=False)))
    assert "best found, no bound known" in page.text and "certified optimal" not in page.text
    assert "says nothing about session_bytes" in page.text and "(not of session_bytes)" in page.text


def test_paths_of_the_machine_become_names(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    result = replace(optimize(model(wide(), path), measure=False), measurement=Measurement(None, f"{path}: cannot run; see {path}"))
    text = render(result)
    assert str(tmp_path) not in text and "net.json: cannot run; see net.json" in text
    assert tell(result).without_paths(f"at {path.parent}/other") == f"at {path.parent}/other"


def test_small_tools_of_the_pen() -> None:
    assert word("a<b>\x00'\"") == "a&lt;b&gt;\\x00&#x27;&quot;"
    assert len(fit("n" * 1000, 100)) < 20 and len(fit("語" * 1000, 100)) < len(fit("n" * 1000, 100))
    assert [label for _, label in marks(0, 4096)] == ["0 KiB", "1 KiB", "2 KiB", "3 KiB", "4 KiB"]
    for low, high in ((0, 1), (0, 7), (3, 1000), (0, 2**61), (17, 17.5)):
        found = list(ticks(low, high))
        assert 2 <= len(found) <= 12 and all(low <= v <= high for v in found)
    assert style().count("{") == style().count("}")
    assert bars(timeline(Program((), ()))).bars == ()


def test_importing_it_is_free() -> None:
    code = "import sys, peakmem.report, peakmem; peakmem.report.render; print(sorted({'numpy','scipy','networkx','ortools'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"
    assert callable(peakmem.optimize)
