"""The page in a real browser: headless Chromium on a report of real runs, at desktop and phone width."""

from __future__ import annotations

import re
import shutil

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")
pytest.importorskip("playwright", reason="needs playwright: pip install playwright")

from playwright import sync_api

from manymodes.cli import main
from manymodes.report import build
from manymodes.report.tables import MINUS, NONE
from tests.report.synthetic import comparison, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
DESKTOP, PHONE = (1280, 900), (390, 844)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS])
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Real runs on the digits, a landscape of each method, and their report."""
    folder = tmp_path_factory.mktemp("runs")
    words = ["--strategies", "finetune,ewc,mota,mota:modes=3,multitask", "--stream", "digits"]
    words += ["--tasks", "4", "--unseen", "2", "--epochs", "2", "--model", "mlp", "--model.hidden", "[16]"]
    assert main(["compare", *words, "--seeds", "0,1", "--out", str(folder)]) == 0
    assert main(["landscape", str(folder), "--points", "7"]) == 0
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


class Opened:
    """A page, what went wrong on it, and what it asked the network for."""

    def __init__(self, browser, path, size=DESKTOP, theme="light", **options):
        width, height = size
        viewport = {"width": width, "height": height}
        self.context = browser.new_context(viewport=viewport, color_scheme=theme, **options)
        self.page = self.context.new_page()
        self.wrong, self.requests = [], []
        self.page.on("console", lambda message: self.wrong.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def draw_all(self):
        """Scroll through: charts are drawn when they come near."""
        self.page.evaluate(
            """async () => {
                for (const chart of document.querySelectorAll(".chart")) {
                    chart.scrollIntoView({behavior: "instant", block: "center"});
                    await new Promise((done) => setTimeout(done, 40));
                }
            }"""
        )
        self.page.wait_for_function(
            """() => [...document.querySelectorAll(".chart")].every(
                (chart) => chart.dataset.drawn || chart.closest("figure").hidden)"""
        )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_chart_is_drawn_without_a_word_on_the_console(browser, report, size, theme):
    with Opened(browser, report, size, theme) as opened:
        opened.draw_all()
        assert opened.wrong == []
        assert [url for url in opened.requests if not url.startswith(("file:", "blob:", "data:"))] == []
        across = opened.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert across[0] <= across[1], "nothing makes the page scroll sideways"
        names = opened.page.eval_on_selector_all(
            ".chart",
            "all => all.filter(e => e.dataset.drawn && e.offsetHeight > 0).map(e => e.dataset.chart)",
        )
        wanted = {"progress", "final", "matrix", "tasks", "forgetting", "drift", "layers", "seconds", "loss"}
        wanted |= {"moved", "responsibility", "chosen", "cosine", "surface", "sharpness", "landscape"}
        assert wanted | {"against", "drift_over_tasks", "total", "cost", "tradeoff"} <= set(names)


def test_charts_keep_their_place_while_they_are_drawn(browser, report):
    with Opened(browser, report) as opened:
        opened.page.evaluate(
            """() => {
                window.shift = 0;
                new PerformanceObserver((list) => {
                    for (const entry of list.getEntries()) window.shift += entry.value;
                }).observe({type: "layout-shift", buffered: true});
            }"""
        )
        opened.draw_all()
        opened.page.wait_for_timeout(300)
        assert opened.page.evaluate("window.shift") < 0.1  # what the web's own measure calls good


@pytest.mark.parametrize(
    ("chart", "mark", "told"),
    [
        ("progress", ".mark-symbol path", "average accuracy"),
        ("matrix", ".mark-rect path", "accuracy"),
        ("layers", ".mark-rect path", "drift"),
        ("final", ".mark-symbol path", "95 % interval"),
        ("against", ".mark-symbol path", "times as far"),
        ("responsibility", ".mark-rect path", "share in the end"),
        ("tradeoff", ".mark-symbol path", "parameters"),
    ],
)
def test_tooltips_tell_the_numbers(browser, report, chart, mark, told):
    with Opened(browser, report) as opened:
        place = opened.page.locator(f".chart[data-chart={chart}]")
        place.scroll_into_view_if_needed()
        place.locator(mark).first.wait_for()
        place.locator(mark).last.hover(force=True)
        tooltip = opened.page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        assert told in tooltip.inner_text()
        assert re.search(r"\d", tooltip.inner_text())
        assert opened.wrong == []


def test_tooltips_of_the_landscape(browser, report):
    with Opened(browser, report) as opened:
        place = opened.page.locator(".chart[data-chart=landscape]")
        place.scroll_into_view_if_needed()
        place.locator("canvas").first.hover()
        tooltip = opened.page.locator("#vg-tooltip-element.visible")
        tooltip.wait_for()
        assert "of the path lies in this plane" in tooltip.inner_text()


def _column(page, name):
    """The cells under a heading, as they stand, without intervals."""
    number = page.locator(".comparison thead th").all_inner_texts()
    at = next(n for n, text in enumerate(number) if " ".join(text.split()).startswith(name))
    cells = page.locator(f".comparison tbody tr > :nth-child({at + 1})").all_inner_texts()
    return [cell.split("\n")[0].strip() for cell in cells]


def _numbers(cells):
    return [float(cell.replace(MINUS, "-").replace(",", "")) for cell in cells if cell != NONE]


def test_the_table_sorts_by_mouse_and_by_keyboard(browser, report):
    with Opened(browser, report) as opened:
        page = opened.page
        head = page.locator(".comparison thead button", has_text="Average accuracy")
        head.click()
        down = _numbers(_column(page, "Average accuracy"))
        assert down == sorted(down, reverse=True)
        assert len(set(down)) > 1
        head.focus()
        page.keyboard.press("Enter")
        assert _numbers(_column(page, "Average accuracy")) == down[::-1]
        assert head.locator("..").get_attribute("aria-sort") == "ascending"
        assert "ascending" in page.locator("#live").inner_text()
        page.locator(".comparison thead button", has_text="Backward").click()
        transfer = _numbers(_column(page, "Backward"))
        assert transfer == sorted(transfer, reverse=True)
        page.locator(".comparison thead button", has_text="Method").click()
        names = _column(page, "Method")
        assert names == sorted(names)
        assert head.locator("..").get_attribute("aria-sort") == "none"
        left_out = page.locator(".comparison thead button", has_text="disagreement")
        for _ in range(2):  # either way round, rows without a value come last
            left_out.click()
            cells = _column(page, "OOD AUROC, disagreement")
            assert NONE not in cells[: len(_numbers(cells))]


@pytest.mark.parametrize("clipboard", [True, False], ids=["clipboard", "no clipboard"])
def test_a_click_copies_the_command(browser, report, clipboard):
    options = {"permissions": ["clipboard-read", "clipboard-write"]} if clipboard else {}
    with Opened(browser, report, **options) as opened:
        page = opened.page
        if not clipboard:  # as where the browser forbids it
            page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
            page.evaluate(
                "document.addEventListener('copy', () => { window.copied = String(getSelection()); })"
            )
        button = page.locator(".comparison tr", has_text="ewc").locator(".copy")
        command = button.get_attribute("data-copy")
        assert command.startswith("manymodes run --strategy ewc")
        assert command.endswith("--seeds 0,1")
        button.click()
        page.locator(".copy.done").wait_for()
        assert "Copied" in button.inner_text()
        copied = page.evaluate("navigator.clipboard.readText()" if clipboard else "window.copied")
        assert copied == command
        page.wait_for_function("!document.querySelector('.copy.done')")
        assert button.inner_text().startswith("Copy")


def test_everything_is_reached_by_the_keyboard(browser, report):
    with Opened(browser, report) as opened:
        page = opened.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
        assert page.locator(".skip").bounding_box()["x"] >= 0, "seen when it has the focus"
        page.keyboard.press("Enter")
        assert page.url.endswith("#main")

        legend = page.locator(".legend button", has_text="ewc").first
        chart = page.locator(".chart[data-chart=progress]")
        chart.scroll_into_view_if_needed()
        chart.locator(".mark-symbol path").first.wait_for()
        legend.focus()
        page.keyboard.press("Space")
        assert legend.get_attribute("aria-pressed") == "true"
        page.wait_for_function(
            "[...document.querySelectorAll('.chart[data-chart=progress] .mark-symbol path')]"
            ".some(e => Number(e.getAttribute('opacity')) < 0.2)"
        )
        page.keyboard.press("Space")
        assert legend.get_attribute("aria-pressed") == "false"

        seed = page.locator(".picker select[name=seed]").first
        matrix = page.locator(".chart[data-chart=matrix]")
        matrix.scroll_into_view_if_needed()
        matrix.locator("text").first.wait_for()
        before = matrix.inner_text()
        seed.focus()
        page.keyboard.press("ArrowDown")
        assert seed.locator("option:checked").inner_text() == "1"
        page.wait_for_function(
            "before => document.querySelector('.chart[data-chart=matrix]').innerText !== before", arg=before
        )
        pickers = page.locator(".picker select[name=seed] option:checked").all_inner_texts()
        assert set(pickers) == {"1"}, "all sections show the same run"

        details = page.locator(".numbers > summary").first
        details.focus()
        page.keyboard.press("Enter")
        page.locator(".numbers[open] table tr").nth(5).wait_for()
        assert opened.wrong == []


def test_what_has_the_focus_is_seen_to_have_it(browser, report):
    with Opened(browser, report) as opened:
        page = opened.page
        for _ in range(25):
            page.keyboard.press("Tab")
            style = page.evaluate(
                "(() => { const e = document.activeElement, s = getComputedStyle(e);"
                " return [e.outerHTML.slice(0, 60), s.outlineStyle, s.outlineWidth]; })()"
            )
            assert style[1] != "none", style
            assert style[2] != "0px", style


def test_the_charts_follow_the_theme(browser, report):
    with Opened(browser, report) as opened:
        chart = opened.page.locator(".chart[data-chart=progress]")
        chart.scroll_into_view_if_needed()
        chart.locator("svg.marks").wait_for()
        opened.page.emulate_media(color_scheme="dark")
        opened.page.wait_for_function(
            "document.querySelector('.chart[data-chart=progress]').dataset.drawn === 'dark'"
        )
        paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(23, 26, 30)"
        fills = chart.locator(".role-axis-label text").first.get_attribute("fill")
        assert fills == "#a3abb4"


def test_without_scripts_the_tables_are_there(browser, report):
    with Opened(browser, report, java_script_enabled=False) as opened:
        assert opened.page.locator(".comparison tbody tr").count() == 5
        assert "need JavaScript" in opened.page.locator("noscript").inner_text()


def test_hostile_labels_do_nothing(browser, tmp_path):
    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&"
    comparison(tmp_path, seeds=1)
    write_run(tmp_path, "si", label=hostile, command=hostile, stream="digits")
    build.write_report([tmp_path], tmp_path, title=hostile)
    with Opened(browser, tmp_path / "report.html") as opened:
        opened.draw_all()
        assert opened.wrong == []
        assert hostile in opened.page.locator("h1").inner_text()
        commands = opened.page.locator(".copy").evaluate_all("all => all.map(e => e.dataset.copy)")
        assert hostile in commands
