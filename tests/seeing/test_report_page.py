"""report.html in a real Chromium: what it draws, asks for, says, and how it folds. It needs Debian's chromium."""

from pathlib import Path
from typing import Any

import pytest

from tests.standin.browser import Page, browsed
from tests.standin.made_run import World, make
from tests.standin.project import Project
from workflow_scripts import files
from workflow_scripts.reporting.report import report

CHARTS = ["pace", "seats", "servers", "output_lengths", "prompt_lengths", "by_source", "shares", "failures", "mix"]
MARKS = """[...document.querySelectorAll('.chart')]
    .map(e => [e.dataset.chart, e.querySelectorAll('svg path, svg rect').length])"""
WIDER = """[...document.querySelectorAll('.chart svg')]
    .filter(e => e.getBoundingClientRect().right > innerWidth).length"""
completion = World.completion
LABELS = """[...document.querySelectorAll('.chart svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].filter(e => e.textContent);
    const boxes = texts.map(e => e.getBoundingClientRect()), card = svg.closest('figure[id]').getBoundingClientRect();
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
    return texts.filter((_, n) => boxes[n].left < card.left || boxes[n].right > card.right
        || boxes.some((box, m) => m < n && meet(box, boxes[n]))).map(e => e.textContent);
})"""
SWATCHES = "document.querySelectorAll('#failures [class$=-swatch]').length"
CLICK = "[...document.querySelectorAll('a, button')].filter(%s)[0].click()"
CHOOSE = """(e => { e.value = 'openorca'; e.dispatchEvent(new Event('change')); })(document.getElementById('source'))"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = make(tmp_path_factory.mktemp("made"), prompts=400, nasty=True)
    path = run.folder / "report.html"
    path.write_bytes(report(run, []))
    return path.as_uri()


def nothing(world: World, number: int) -> dict[str, Any]:
    """A completion without a token."""
    row = completion(world, number)
    row["turns"][0] |= {"class": "empty", "usage": {"prompt_tokens": 9, "completion_tokens": 0}}
    return row


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_everything_and_asks_for_nothing(url: str, tmp_path: Path, width: int, scheme: str) -> None:
    async def look(page: Page) -> Any:
        await page.show(url, width, scheme=scheme)
        colours = "getComputedStyle(document.body)"
        found = {
            "marks": dict(await page.js(MARKS)),
            "wide": await page.js("document.documentElement.scrollWidth"),
            "title": await page.js("document.title"),
            "ground": await page.js(f"{colours}.backgroundColor"),
            "axis": await page.js("getComputedStyle(document.querySelector('#mix svg text')).fill"),
            "overflow": await page.js(WIDER),
        }
        await page.picture(tmp_path / "page.png")
        return found | {"messages": page.messages, "requests": page.requests}

    found = browsed(tmp_path / "browser", look)
    assert found["messages"] == [] and found["requests"] == [url]
    assert found["title"] == "world-0badcafe"  # and not `owned`
    assert all(found["marks"][chart] > 2 for chart in CHARTS), found["marks"]
    assert found["wide"] <= width and found["overflow"] == 0
    assert found["ground"] == {"light": "rgb(251, 250, 248)", "dark": "rgb(20, 23, 26)"}[scheme]
    assert found["axis"] == {"light": "rgb(29, 33, 38)", "dark": "rgb(230, 232, 234)"}[scheme]
    assert (tmp_path / "page.png").stat().st_size > 50_000


@pytest.mark.parametrize("width", [390, 1440])
def test_seventeen_sources_with_long_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    names = [f"source_{number:02d}_whose_name_has_sixty_four_characters_as_it_may_have_" for number in range(17)]
    monkeypatch.setattr("tests.standin.made_run.SOURCES", {name: (5, 900) for name in names})
    run = make(tmp_path, prompts=1200, chunks=1)
    run.report.write_bytes(report(run, []))

    async def look(page: Page) -> Any:
        await page.show(run.report.as_uri(), width)
        wide = await page.js("document.documentElement.scrollWidth")
        return {"wide": wide, "labels": await page.js(LABELS), "swatches": await page.js(SWATCHES)}

    found = browsed(tmp_path / "browser", look)
    assert found["wide"] <= width and found["labels"] == [] and found["swatches"] == 9


def test_a_run_that_made_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.standin.made_run.World.completion", nothing)
    run = make(tmp_path, prompts=5, chunks=1)
    path = run.folder / "progress.jsonl"
    files.write_bytes(path, path.read_bytes().splitlines(keepends=True)[0])
    run.report.write_bytes(report(run, []))

    async def look(page: Page) -> Any:
        await page.show(run.report.as_uri(), 390)
        told = "document.querySelector('#%s .chart').textContent"
        charts = {chart: await page.js(told % chart) for chart in ("pace", "by_source", "seats")}
        has_nan = await page.js("document.querySelector('main').textContent.includes('NaN')")
        return charts, await page.js(LABELS), has_nan, page.messages

    charts, labels, has_nan, messages = browsed(tmp_path / "browser", look)
    assert charts["pace"] == charts["by_source"] == "Nothing was recorded." and "requests" in charts["seats"]
    assert (labels, has_nan, messages) == ([], False, [])


def test_it_folds_by_keyboard_and_filters_by_source(url: str, tmp_path: Path) -> None:
    async def look(page: Page) -> Any:
        await page.show(url, 1000)
        folds = "[...document.querySelectorAll('details')].filter(e => e.open).length"
        found: dict[str, Any] = {"open": [await page.js(folds)]}
        conversation = "document.querySelector('details.conversation:has(.folded)')"
        await page.js(f"{conversation}.querySelector('summary').focus()")
        await page.press("Enter")
        found["open"].append(await page.js(folds))
        await page.press("Tab")  # to the first fold inside
        found["focus"] = await page.js("document.activeElement.textContent")
        await page.press(" ")
        found["open"].append(await page.js(folds))
        found["read"] = await page.js("document.activeElement.parentElement.querySelector('pre').checkVisibility()")
        await page.press(" ")
        found["open"].append(await page.js(folds))
        chart = "document.querySelector('#output_lengths .chart').innerHTML"
        before = await page.js(chart)
        await page.js(CHOOSE)
        found["redrawn"] = await page.js(chart) != before
        await page.call("Emulation.setDeviceMetricsOverride", width=600, height=900, deviceScaleFactor=1, mobile=False)
        await page.js("new Promise((done) => setTimeout(done, 300))")
        found["narrow"] = await page.js(
            "document.querySelector('#pace .chart > figure > svg').getBoundingClientRect().width"
        )
        return found | {"messages": page.messages}

    found = browsed(tmp_path / "browser", look)
    assert found["open"] == [0, 1, 2, 1]
    assert found["focus"] in ("Thinking", "Call of get_weather") and found["read"]
    assert found["redrawn"] and found["narrow"] < 600 and found["messages"] == []


def test_it_is_sane_to_a_screen_reader_and_on_paper(url: str, tmp_path: Path) -> None:
    async def look(page: Page) -> Any:
        await page.show(url, 1000, scheme="dark")
        tree = await page.call("Accessibility.getFullAXTree")
        pdf = await page.pdf()
        await page.call("Emulation.setEmulatedMedia", media="print")
        paper = await page.js("getComputedStyle(document.body).backgroundColor")
        return {"nodes": tree["nodes"], "pdf": pdf, "paper": paper, "messages": page.messages}

    found = browsed(tmp_path / "browser", look)
    roles = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in found["nodes"] if "role" in node
    ]
    names = [name for role, name in roles if role in ("image", "img")]
    assert len([name for name in names if " chart of " in name]) >= 6
    assert ("heading", "Conversations") in roles and any(role == "main" for role, _ in roles)
    assert any(role == "combobox" and name == "Source" for role, name in roles)
    assert not [role for role, name in roles if role in ("link", "button", "combobox") and not name]
    assert found["pdf"].startswith(b"%PDF") and found["paper"] == "rgb(255, 255, 255)" and found["messages"] == []


def test_without_scripts_its_tables_have_the_numbers(url: str, tmp_path: Path) -> None:
    async def look(page: Page) -> Any:
        await page.call("Emulation.setScriptExecutionDisabled", value=True)
        await page.call("Page.enable")
        await page.call("Page.navigate", url=url)
        while (await page._next()).get("method") != "Page.loadEventFired":
            pass
        document = await page.call("DOM.getDocument")
        html = await page.call("DOM.getOuterHTML", nodeId=document["root"]["nodeId"])
        return html["outerHTML"]

    html = browsed(tmp_path / "browser", look)
    assert "<svg" not in html and "Charts need JavaScript" in html and '<th scope="row">openorca</th>' in html


def test_snakemakes_own_report_takes_it_in(finished: Project, tmp_path: Path) -> None:
    result = finished.run("--report", "all.html")
    assert result.code == 0, result.output

    async def look(page: Page) -> Any:
        await page.show((finished.folder / "all.html").as_uri(), 1200)
        for name in ("Results", "Account"):
            await page.js(CLICK % f"e => e.textContent.trim() === '{name}'")
            await page.js("new Promise((done) => setTimeout(done, 300))")
        text = await page.js("document.body.innerText")
        await page.js(CLICK % "e => e.closest('tr')?.textContent.includes('the report')")
        await page.js("new Promise((done) => setTimeout(done, 300))")
        inside = await page.js(
            "atob(document.querySelector('iframe').src.split(',')[1]).includes('Draftmill run report')"
        )
        return {"text": text, "inside": inside, "messages": page.messages}

    found = browsed(tmp_path / "browser", look)
    assert "the numbers, as JSON" in found["text"] and "the report" in found["text"] and found["inside"]
    assert not [message for message in found["messages"] if "error" in message.lower() or "Warning" in message]
