"""The report of every frontend, and what a real browser makes of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import peakmem
import pytest
from browser import Browser, browser, program
from peakmem.frontends import discover
from peakmem.model import RuntimeMissing, timeline
from peakmem_cli.main import main


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if program() is None:
        pytest.skip("needs a headless browser: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.beside(name)) for name in sorted(discover())])
def test_every_frontend_gets_its_page(name: str, samples: dict[str, Callable[[Path], Path]], tmp_path: Path) -> None:
    if name not in samples:
        pytest.skip(f"no small artifact of frontend {name!r} can be made here")
    sample = samples[name](tmp_path)
    try:
        model = peakmem.load(sample)
    except RuntimeMissing as error:
        pytest.skip(str(error))
    page = tmp_path / "page.html"
    assert main(["report", str(sample), "-o", str(page)]) == 0
    text = page.read_text()
    assert model.digest in text and model.program.digest in text and model.quantity in text
    assert str(tmp_path) not in text


def page_of(folder: Path, samples: dict[str, Callable[[Path], Path]]) -> tuple[Path, int, int]:
    """A page, the peak before and the peak after."""
    sample = samples["program"](folder)
    page = folder / "page.html"
    assert main(["report", str(sample), "-o", str(page), "-q"]) == 0
    source = peakmem.load(sample)
    return page, timeline(source.program).peak, peakmem.optimize(source, measure=False).live_peak_after


def faults(chrome: Browser) -> list[object]:
    """Messages of the console, exceptions, and requests for anything but the page."""
    found: list[object] = []
    for event in chrome.events:
        method, parameters = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            found.append(parameters)
        if method == "Network.requestWillBeSent" and parameters["request"]["url"] != parameters["documentURL"]:
            found.append(parameters["request"]["url"])
    return found


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (400, False)])
def test_the_picture_is_there_and_reaches_the_peak(
    chrome: Browser, width: int, dark: bool, samples: dict[str, Callable[[Path], Path]], tmp_path: Path
) -> None:
    page, before, after = page_of(tmp_path, samples)
    chrome.open(page, width=width, dark=dark)
    assert faults(chrome) == []
    assert chrome.evaluate("document.documentElement.scrollWidth") <= width, "the page is wider than the window"
    shown = chrome.evaluate(
        """(() => {
          const svg = [...document.querySelectorAll("svg.memory")].filter((s) => s.getBoundingClientRect().width > 0);
          const box = svg[0].getBoundingClientRect();
          const drawn = (name) => {
            const path = svg[0].querySelector("path.line." + name);
            const length = path.getTotalLength();
            let top = Infinity;
            for (let i = 0; i <= 20000; i++) top = Math.min(top, path.getPointAtLength(length * i / 20000).y);
            return [path.getBBox().y, top, path.getBBox().width, getComputedStyle(path).stroke];
          };
          return {count: svg.length, width: box.width, height: box.height, data: {...svg[0].dataset},
                  before: drawn("before"), after: drawn("after"), paper: getComputedStyle(document.body).backgroundColor};
        })()"""
    )
    assert shown["count"] == 1 and shown["width"] > 0.8 * min(width, 900) and shown["height"] > 200
    data = {key: float(value) for key, value in shown["data"].items()}
    # What the axis says: the foot is 0 bytes, and the highest mark of the axis tells how many bytes a pixel is.
    scale = max(before, after) * 1.04 / (data["foot"] - data["top"])
    for name, peak in (("before", before), ("after", after)):
        box_top, walked_top, drawn_width, _ = shown[name]
        assert abs((data["foot"] - box_top) * scale - peak) <= 0.06 * scale
        assert abs(box_top - walked_top) < 0.1
        assert abs(drawn_width - (data["right"] - data["left"])) < 0.2
    assert shown["before"][3] != shown["after"][3]
    assert (sum(map(int, shown["paper"].removeprefix("rgb(").removesuffix(")").split(","))) < 150) is dark


def test_pointing_and_arrow_keys_name_the_step(
    chrome: Browser, samples: dict[str, Callable[[Path], Path]], tmp_path: Path
) -> None:
    page, _, _ = page_of(tmp_path, samples)
    chrome.open(page)
    curves = json.loads(chrome.evaluate("document.getElementById('curves').textContent"))
    x, y = chrome.evaluate(
        """(() => { const s = document.querySelector("svg.memory.wide"), b = s.getBoundingClientRect(), d = s.dataset;
           const x = +d.left + (d.right - d.left) * 0.5 / d.steps;
           return [b.left + x * b.width / s.viewBox.baseVal.width, b.top + b.height / 2]; })()"""
    )
    chrome.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    said = "document.getElementById('readout').textContent"
    for step, key in ((0, None), (1, "ArrowRight"), (curves["steps"] - 1, "End"), (curves["steps"] - 2, "ArrowLeft")):
        if key is not None:
            chrome.evaluate("document.getElementById('stage').focus()")
            chrome.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        text = chrome.evaluate(said)
        for curve in curves["curves"]:
            index, size, statement, largest = curve["moments"][step]
            assert index == step
            assert f"step {step} of 0..{curve['steps'] - 1}, {curves['names'][statement]}: {size:,} B" in text
            assert all(f"{curves['names'][b]} ({bytes_:,} B)" in text for b, bytes_ in largest)
    assert faults(chrome) == []


def test_a_step_is_pinned_by_click_and_key_and_lists_what_is_live(
    chrome: Browser, samples: dict[str, Callable[[Path], Path]], tmp_path: Path
) -> None:
    page, _, _ = page_of(tmp_path, samples)
    chrome.open(page)
    curves = json.loads(chrome.evaluate("document.getElementById('curves').textContent"))
    after = curves["curves"][-1]
    listed = "document.getElementById('live').textContent"

    def expected(step: int) -> list[str]:
        return [f"{curves['names'][n]} ({curves['names'][op]})" for n, op, _, first, last in after["live"] if first <= step <= last]

    def press(key: str) -> None:
        chrome.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)

    for where in ("memory", "lifetimes"):  # a click on any figure pins, and the cursor stands in all of them
        x, y = chrome.evaluate(
            f"""(() => {{ const s = document.querySelector("svg.{where}.wide"); s.scrollIntoView();
               const b = s.getBoundingClientRect(), d = s.dataset, x = +d.left + (d.right - d.left) * 1.5 / d.steps;
               return [b.left + x * b.width / s.viewBox.baseVal.width, b.top + Math.min(b.height / 2, 200)]; }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            chrome.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        assert "Pinned at step 1." in chrome.evaluate("document.getElementById('pinned').textContent")
        text = chrome.evaluate(listed)
        assert expected(1) and all(name in text for name in expected(1))
        places = chrome.evaluate("[...document.querySelectorAll('svg.wide .cursor')].map((c) => c.getAttribute('d'))")
        assert len(places) >= 2 and all(places)
        press("Escape")
        assert chrome.evaluate(listed) == ""
    chrome.evaluate("document.getElementById('stage').focus()")
    press("Home")
    press("Enter")
    press("ArrowRight")
    assert "Pinned at step 1." in chrome.evaluate("document.getElementById('pinned').textContent")
    now = chrome.evaluate("[...document.querySelectorAll('svg.lifetimes.wide .now')].map((b) => [+b.dataset.begin, +b.dataset.end])")
    assert now and all(begin <= 1 < end for begin, end in now)
    press("Enter")
    assert chrome.evaluate("document.getElementById('release').hidden")
    assert faults(chrome) == []


def test_buffers_are_found_by_name_and_lead_to_their_step(
    chrome: Browser, samples: dict[str, Callable[[Path], Path]], tmp_path: Path
) -> None:
    page, _, _ = page_of(tmp_path, samples)
    chrome.open(page)
    curves = json.loads(chrome.evaluate("document.getElementById('curves').textContent"))
    name, _, size, first, _ = curves["curves"][-1]["live"][0]
    name = curves["names"][name]
    chrome.evaluate(f"(() => {{ const f = document.getElementById('find'); f.value = {json.dumps(name.upper())}; f.dispatchEvent(new Event('input')); }})()")
    buttons = chrome.evaluate("[...document.querySelectorAll('#hits button')].map((b) => b.textContent)")
    assert any(b.startswith(f"{name}, {size:,} B, ") for b in buttons)
    assert chrome.evaluate("document.querySelectorAll('svg.lifetimes.wide .hit').length") >= 1
    chrome.evaluate(f"[...document.querySelectorAll('#hits button')].find((b) => b.textContent.startsWith({json.dumps(name)})).click()")
    assert f"Pinned at step {max(0, first)}." in chrome.evaluate("document.getElementById('pinned').textContent")
    assert faults(chrome) == []


@pytest.fixture(scope="module")
def big_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a graph of 3,000 statements."""
    big = Path(__file__).parents[2] / "shared" / "data" / "faults" / "graphs" / "bound" / "big.prog.json"
    if not big.is_file():
        pytest.skip("needs ../shared/data")
    page = tmp_path_factory.mktemp("big") / "big.html"
    assert main(["report", str(big), "-o", str(page), "-q", "--time-limit", "5"]) == 0
    return page


def test_nine_tenths_of_the_peak_are_named_on_the_first_screen(chrome: Browser, big_page: Path) -> None:
    chrome.open(big_page, width=1400)
    shown = chrome.evaluate(
        """[...document.querySelectorAll(".groups table")].map((t) => [...t.tBodies[0].rows].map((r) =>
           [r.cells[0].textContent, parseFloat(r.cells[2].textContent), r.getBoundingClientRect().bottom]))"""
    )
    assert len(shown) >= 2
    for rows in shown:
        named = [row for row in rows if not row[0].startswith("others")]
        assert sum(share for _, share, _ in named) >= 90
        assert max(foot for _, _, foot in rows) <= 1000, "below the first screen"
    assert faults(chrome) == []


def test_the_page_reads_without_scripts(
    chrome: Browser, samples: dict[str, Callable[[Path], Path]], tmp_path: Path
) -> None:
    page, before, after = page_of(tmp_path, samples)
    chrome.open(page, scripts=False)
    assert faults(chrome) == []
    tree = chrome.call("Accessibility.getFullAXTree")["nodes"]
    words = " ".join(str(node["name"].get("value", "")) for node in tree if "name" in node and not node.get("ignored"))
    for needed in ("certified optimal", f"{before:,} B", f"{after:,} B", "Memory over steps", "Lifetimes", "peak at step"):
        assert needed in words
    assert "arrow keys" not in words, "a hint that needs scripts is shown without them"


def test_hostile_names_run_nothing_in_a_browser(chrome: Browser, tmp_path: Path) -> None:
    names = [
        "<script>document.title='owned'</script>", "\"><img src=x onerror=\"document.title='owned'\">",
        "</script><script>document.title='owned'</script>", "</title></svg><iframe src='https://example.com'>", "\u202e\u2066x",
        "n" * 10_000,
    ]  # fmt: skip
    path, page, figure = tmp_path / "evil.json", tmp_path / "page.html", tmp_path / "memory.svg"
    path.write_text(
        json.dumps(
            {
                "schema": "peakmem.program/1",
                "buffers": [{"id": name, "bytes": 100 + i} for i, name in enumerate(names)],
                "statements": [{"id": name, "op": name, "writes": [name]} for name in names],
            }
        )
    )
    assert main(["report", str(path), "-o", str(page), "--figure", str(figure)]) == 0
    for file in (page, figure):
        chrome.open(file)
        assert faults(chrome) == []
        assert "owned" not in str(chrome.evaluate("document.title")).split(":")[0]
        assert chrome.evaluate("document.querySelectorAll('img, iframe').length") == 0
    chrome.open(page)
    assert chrome.evaluate("document.querySelectorAll('script').length") == 2
    assert chrome.evaluate("document.documentElement.scrollWidth") <= 1200


def axe() -> str:
    """The source of axe-core; skips where it is not installed."""
    places = [os.environ.get("AXE_CORE", ""), str(Path(__file__).parents[1] / "node_modules" / "axe-core" / "axe.min.js")]
    if (npm := shutil.which("npm")) is not None:
        folder = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, timeout=600, check=False).stdout.strip()
        places.append(f"{folder}/axe-core/axe.min.js")
    for place in places:
        if place and Path(place).is_file():
            return Path(place).read_text()
    pytest.skip("needs axe-core: npm install -g axe-core, or AXE_CORE=.../axe.min.js")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["big_page", "page_of_a_recomputation"])
def test_axe_finds_nothing(chrome: Browser, request: pytest.FixtureRequest, name: str, dark: bool) -> None:
    source = axe()
    chrome.open(request.getfixturevalue(name), width=1400, dark=dark)
    chrome.evaluate("document.getElementById('stage').focus()")
    chrome.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter")  # with the lists of a pinned step
    assert chrome.evaluate("document.getElementById('live').childElementCount") >= 1
    chrome.evaluate(f"{source};0")
    found = json.loads(chrome.evaluate("axe.run(document).then((r) => JSON.stringify(r))", wait=True))
    assert len(found["passes"]) >= 15, "axe looked at nothing"
    told = [
        f"{v['id']} ({v['impact']}): {node['html'][:200]} {node.get('failureSummary', '')}" for v in found["violations"] for node in v["nodes"]
    ]
    assert told == []


@pytest.fixture
def page_of_a_recomputation(samples: dict[str, Callable[[Path], Path]], tmp_path: Path) -> Path:
    """A small page with a front and all sections."""
    page = tmp_path / "page.html"
    assert main(["report", str(samples["program"](tmp_path)), "--recompute", "-o", str(page), "-q"]) in (0, 1)
    return page


def test_figures_are_drawn_closer_together_and_by_keys(
    chrome: Browser, samples: dict[str, Callable[[Path], Path]], big_page: Path
) -> None:
    chrome.open(big_page, width=1400)
    curves = json.loads(chrome.evaluate("document.getElementById('curves').textContent"))
    steps = curves["steps"]

    def press(key: str) -> None:
        chrome.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)

    def shown() -> tuple[int, int]:
        first, last = chrome.evaluate("document.getElementById('span').textContent").replace(",", "").split(" ")[1::2]
        return int(first), int(last) + 1

    # Where each figure draws the statements of the peak, and where its cursor says that they are.
    drawn = """[...document.querySelectorAll("svg.memory.wide, svg.lifetimes.wide")].map((s) => {
        const at = s.getBoundingClientRect(), scale = s.viewBox.baseVal.width / at.width;
        const box = (node) => { const b = node.getBoundingClientRect(); return [(b.left - at.left) * scale, (b.right - at.left) * scale]; };
        return {left: +s.dataset.left, right: +s.dataset.right, cursor: +s.querySelector(".cursor").getAttribute("d").split(/[M ]/)[1],
                now: [...s.querySelectorAll(".now")].map((b) => [+b.dataset.begin, +b.dataset.end, ...box(b)]),
                ticks: [...s.querySelectorAll("text.soft")].filter((t) => t.style.display !== "none" && t.getAttribute("text-anchor") === "middle"
                    && /^[\\d,]+$/.test(t.textContent)).map((t) => [+t.textContent.replaceAll(",", ""), +t.getAttribute("x")])};
    })"""
    assert chrome.evaluate("document.getElementById('wider').disabled")
    chrome.evaluate("document.getElementById('stage').focus()")
    press("Enter")
    step, drawn_to = curves["start"], 0.06  # figures are drawn to a tenth of a unit, which five steps draw 32 times as wide
    for _ in range(5):
        press("+")
    first, last = shown()
    assert last - first == round(round(round(round(round(steps / 2) / 2) / 2) / 2) / 2)
    assert first <= step < last
    for figure in chrome.evaluate(drawn):
        pace = (figure["right"] - figure["left"]) / (last - first)
        assert abs(figure["cursor"] - (figure["left"] + (step + 0.5 - first) * pace)) < 0.1
        assert len(figure["ticks"]) >= 3
        for at, x in figure["ticks"]:
            assert abs(x - (figure["left"] + (at + 0.5 - first) * pace)) < 0.2
        for begin, end, x0, x1 in figure["now"]:
            assert begin <= step < end
            assert abs(x0 - (figure["left"] + (begin - first) * pace)) < drawn_to * 2**5 + 0.001 * abs(x0)
            assert abs(x1 - (figure["left"] + (end - first) * pace)) < drawn_to * 2**5 + 0.001 * abs(x1)
    assert any(figure["now"] for figure in chrome.evaluate(drawn))
    # What is read stays in sight.
    press("Home")
    assert shown() == (0, last - first)
    press("End")
    assert shown() == (steps - (last - first), steps)
    press("-")
    chrome.evaluate("document.getElementById('whole').click()")
    assert chrome.evaluate("document.getElementById('span').textContent") == f"all {steps:,} steps"
    assert chrome.evaluate("document.querySelector('svg.memory.wide .stretched').getAttribute('transform')") == ""
    assert faults(chrome) == []


def test_several_models_in_one_page(
    chrome: Browser, samples: dict[str, Callable[[Path], Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = samples["program"](tmp_path)
    second, third = tmp_path / "second <b>.json", tmp_path / "third.json"
    document = json.loads(first.read_text())
    for row in document["buffers"]:
        row["bytes"] *= 3
    second.write_text(json.dumps(document))
    shutil.copy(first, third)
    page = tmp_path / "three.html"
    assert main(["report", str(first), "--also", str(second), "--also", str(third), "-o", str(page)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("certified optimal") == 3 and "second <b>.json: " in printed
    chrome.open(page)
    assert faults(chrome) == []
    assert chrome.evaluate("document.querySelectorAll('article').length") == 3
    assert chrome.evaluate("document.querySelectorAll('h1').length") == 1
    assert chrome.evaluate("[...document.querySelectorAll('[id]')].map((n) => n.id).length === new Set([...document.querySelectorAll('[id]')].map((n) => n.id)).size")
    rows = chrome.evaluate("[...document.querySelectorAll('main > section tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))")
    assert [row[0] for row in rows] == [first.name, second.name, third.name]
    links = chrome.evaluate("[...document.querySelectorAll('main > section a')].map((a) => document.querySelector(a.getAttribute('href')) !== null)")
    assert links == [True] * 3
    # The figures of one model are linked with each other, and not with those of the next.
    chrome.evaluate("document.getElementById('stage-2').focus()")
    chrome.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter")
    assert chrome.evaluate("[1, 2, 3].map((k) => document.getElementById('pinned-' + k).textContent !== '')") == [False, True, False]
    three = peakmem.optimize(peakmem.load(second), measure=False)
    assert f"{three.live_peak_after:,} B" in chrome.evaluate("document.getElementById('readout-2').textContent")
    source = axe()
    chrome.evaluate(f"{source};0")
    found = json.loads(chrome.evaluate("axe.run(document).then((r) => JSON.stringify(r))", wait=True))
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found["violations"]] == []
