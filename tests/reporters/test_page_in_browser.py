"""The HTML pages in headless Chromium: what they show, do and request, with axe-core, and how fast they open.

The tests are skipped where there is no Chromium or no Playwright, or for those of accessibility no axe-core.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attnshape
from attnshape.model.formatting import format_bytes, format_count, format_ratio
from attnshape.reporters.registry import find_renderer
from attnshape.reporters.reporter import Screen
from attnshape.reporters.trace_view import ViewOptions, trace_view
from attnshape.reporters.web.trace_page import trace_document
from tests.reporters import sample_batches, sample_reports
from tests.reporters.hostile_text import with_text
from tests.reporters.sample_pages import QUICK, PageTarget, deep_model, page_of, source_of, traces_of
from tests.reporters.sample_traces import every_text, fused, multi_head
from tests.reporters.test_pages import PAGES

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright isn't installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium", allow_module_level=True)

SECONDS_TO_OPEN = 2
PAYLOADS = (
    "<img src=x onerror=document.title='hit'>",
    "</script><script>document.title='hit'</script>",
    "\" onmouseover=\"document.title='hit'",
    "<!--<script>",
    "a\nb\x1b[31mc",
    "${document.title='hit'}",
    "__proto__",
    "&lt;b&gt;",
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as runner:
        browser = runner.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in the browser, and what it logged and requested."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:,")):
            self.problems.append(url)

    def texts(self, selector: str) -> list[str]:
        return [str(one) for one in self.page.locator(selector).all_inner_texts()]

    def column(self, name: str) -> list[str]:
        """Return the cells of a column of the table."""
        return self.texts(f"td[data-column='{name}']")


OpenPage = Callable[..., Opened]


@pytest.fixture
def open_page(chromium: Any, tmp_path: Path) -> Iterator[OpenPage]:
    contexts = []

    def opened(text: str, width: int = 1200, scheme: str = "light") -> Opened:
        file = tmp_path / f"page-{len(contexts)}.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        shown = Opened(context.new_page())
        shown.page.goto(file.as_uri())
        return shown

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", [400, 1000, 1600])
@pytest.mark.parametrize("name", PAGES)
def test_no_page_logs_requests_or_overflows(name: str, width: int, open_page: OpenPage) -> None:
    shown = open_page(PAGES[name](), width)
    shown.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.page.wait_for_timeout(50)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_serious_fault(name: str, scheme: str, open_page: OpenPage) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core isn't installed")
    source = next(Path(axe.__file__).parent.rglob("axe.min.js")).read_text(encoding="utf-8")
    shown = open_page(PAGES[name](), scheme=scheme)
    shown.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    if name in ("trace", "behaviour"):
        shown.page.locator("button.number").nth(10).click()
    # the policy of a page keeps scripts from being added, but not what a debugger evaluates
    shown.page.evaluate(source)
    violations = shown.page.evaluate("axe.run().then((result) => result.violations)")
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in serious] == []


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_names_are_text(payload: str, open_page: OpenPage) -> None:
    for trace in (with_text(every_text(), payload), with_text(fused(), payload)):
        shown = open_page(page_of(trace, ViewOptions(explain=True)))
        title = shown.page.title()
        shown.page.locator("button.number").first.click()
        shown.page.locator(".flow-frame .node").first.hover()
        for image in shown.page.locator(".flow-frame .node").all():
            image.click()
        assert (shown.page.title(), shown.problems) == (title, [])
        assert shown.page.evaluate("document.querySelectorAll('img, iframe, [onerror], [onmouseover]').length") == 0
        visible = payload.encode("unicode_escape").decode() if not payload.isprintable() else payload
        assert visible in " ".join(shown.texts("tr.step"))
    report = find_renderer("html", "reports").render_summary(
        with_text(sample_batches.every_text(sample_reports.every_text()), payload), Screen(100)
    )
    shown = open_page(report)
    assert shown.problems == []
    assert shown.page.evaluate("document.querySelectorAll('img').length") == 0


def test_ten_thousand_steps_open_in_two_seconds(open_page: OpenPage, tmp_path: Path) -> None:
    trace = deep_model(556)
    lines = source_of(trace)
    text = trace_document(trace, trace_view(trace, ViewOptions()), lambda name: lines)
    open_page(text)  # starts the process of the page
    shown = open_page(text)
    shown.page.wait_for_selector(".trace.ready .flow-frame svg")
    opened = shown.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < opened < SECONDS_TO_OPEN * 1000
    shown.page.locator("input[type=search]").fill("softmax")
    assert shown.texts(".filter [role=status]") == ["556 rows, 500 shown"]
    assert shown.page.locator("tr.step:visible").count() == 500


@pytest.mark.parametrize("target", QUICK)
def test_sliders_give_the_numbers_of_a_trace_at_these_sizes(target: PageTarget, open_page: OpenPage) -> None:
    at_default, at_moved = traces_of(target)
    options = ViewOptions(None)
    shown = open_page(page_of(at_default, options))
    expected = open_page(page_of(at_moved, options))
    assert shown.column("shape") != expected.column("shape")
    for symbol, size in target.moved.items():
        shown.page.get_by_label(f"size {symbol}, as a number").fill(str(size))
    for name in ("signature", "shape", "stride", "flops", "storage"):
        assert shown.column(name) == expected.column(name), name
    # where a cost has no formula, that is said
    moved = zip(shown.column("moved"), expected.column("moved"), strict=True)
    assert all(one in (other, "?") for one, other in moved)
    assert shown.texts(".totals dd strong")[0] == expected.texts(".totals dd strong")[0]
    assert "within its preconditions" in shown.texts(".status")[0]
    shown.page.get_by_role("button", name="reset to the run").click()
    assert shown.column("shape") == open_page(page_of(at_default, options)).column("shape")
    assert shown.problems == []


def test_sizes_outside_of_the_preconditions_have_no_numbers(open_page: OpenPage) -> None:
    shown = open_page(page_of(multi_head()))
    shown.page.get_by_label("size H, as a number").fill("7")
    assert shown.texts(".status") == ["No formula holds at these sizes: H divides D."]
    assert {*shown.column("shape")} == {"–"}
    shown.page.get_by_label("size D, as a number").fill("70")
    assert shown.column("shape")[2] == "2 30 70"
    slider = shown.page.get_by_label("size B", exact=True)
    slider.press("ArrowRight")
    assert shown.column("shape")[2] == "3 30 70"


def test_a_click_shows_the_row_the_source_the_explanation_and_the_cost(open_page: OpenPage) -> None:
    trace, _ = traces_of(QUICK[0].values[0])
    shown = open_page(page_of(trace))
    node = shown.page.get_by_role("button", name="scores: query · key products")
    node.click()
    assert shown.texts("tr.selected .c-step") == ["scores = … / math.sqrt(Dk)"]
    assert shown.texts(".details mark") == ["query @ key.transpose(-2, -1) / math.sqrt(Dk)"]
    product, scaled = shown.page.locator(".details .siblings button").all()
    assert scaled.get_attribute("aria-current") == "step"
    product.click()
    assert shown.texts("tr.selected td.c-number") == ["11"]
    details = shown.texts(".details")[0]
    assert "^^^^^" in details
    assert "each the dot product of a query and a key" in details
    assert "205 k = 2*B*H*L*L*Dk" in details


def test_the_keyboard_opens_and_closes_the_details(open_page: OpenPage) -> None:
    shown = open_page(page_of(multi_head()))
    node = shown.page.locator(".flow-frame .node").nth(2)
    node.focus()
    for key in ("Enter", "Space"):
        shown.page.keyboard.press(key)
        assert shown.page.locator(".details").is_visible()
        assert shown.page.evaluate("document.activeElement.tagName") == "H3"
        shown.page.keyboard.press("Escape")
        assert not shown.page.locator(".details").is_visible()
        assert shown.page.evaluate("document.activeElement.classList.contains('node')")
    shown.page.locator("button.number").nth(3).press("Enter")
    assert shown.texts("tr.selected td.c-number") == ["4"]


def test_parts_of_the_picture_fold(open_page: OpenPage) -> None:
    shown = open_page(page_of(deep_model(3)))
    buttons = shown.page.locator(".unfolded button")
    before = shown.page.locator(".flow-frame .node").count()
    folded = buttons.last.inner_text().removeprefix("⊟ ")
    buttons.last.click()
    after = shown.page.locator(".flow-frame .node").count()
    assert after < before
    shown.page.get_by_role("button", name=f"unfold {folded}", exact=True).press("Enter")
    assert shown.page.locator(".flow-frame .node").count() == before
    assert shown.problems == []


def test_nodes_of_the_picture_are_apart(open_page: OpenPage) -> None:
    for width in (400, 1600):
        shown = open_page(page_of(deep_model(2)), width)
        boxes = [one.bounding_box() for one in shown.page.locator(".flow-frame .node > .box").all()]
        for place, one in enumerate(boxes):
            for other in boxes[place + 1 :]:
                apart = (
                    one["x"] + one["width"] <= other["x"]
                    or other["x"] + other["width"] <= one["x"]
                    or one["y"] + one["height"] <= other["y"]
                    or other["y"] + other["height"] <= one["y"]
                )
                assert apart, (one, other)


@pytest.mark.parametrize("width", [400, 1600])
def test_no_part_of_a_label_hides_another(width: int, open_page: OpenPage) -> None:
    shown = open_page(page_of(multi_head()), width)
    shown.page.wait_for_selector(".flow-frame .signature")
    # what is drawn later is above: outlines come before all texts, and no text has one
    kinds = shown.page.locator(".flow-frame .signature").evaluate_all(
        "all => all.map(one => [one.classList.contains('outline'), getComputedStyle(one).stroke])"
    )
    assert len(kinds) > 2
    outlines = [stroke for is_outline, stroke in kinds if is_outline]
    assert [stroke for is_outline, stroke in kinds[len(outlines) :]] == ["none"] * len(outlines)
    assert "none" not in outlines
    assert (
        shown.page.locator(".flow-frame .signature:not(.outline) tspan").first.evaluate(
            "one => getComputedStyle(one).stroke"
        )
        == "none"
    )


def test_old_and_new_steps_stand_on_lines_of_their_own_on_a_phone(open_page: OpenPage) -> None:
    shown = open_page(PAGES["difference"](), 400)
    changed = shown.page.locator("td.c-step.changed").first
    old, new = (changed.locator(name).bounding_box() for name in ("del", "ins"))
    assert old["y"] + old["height"] <= new["y"]


def test_the_source_of_a_step_of_a_long_part_is_in_sight(open_page: OpenPage) -> None:
    shown = open_page(page_of(attnshape.trace("latent")), 400)
    shown.page.locator("button.number").nth(9).click()
    frame, source = (shown.page.locator(one).bounding_box() for one in (".details", ".details mark"))
    assert source["y"] + source["height"] <= frame["y"] + frame["height"]


@pytest.mark.parametrize("width", [400, 1600])
def test_no_label_hides_a_line_of_the_picture(width: int, open_page: OpenPage) -> None:
    shown = open_page(page_of(multi_head()), width)
    hidden = """() => [...document.querySelectorAll(".flow-frame .edge")].flatMap((edge) => {
      const length = edge.getTotalLength();
      const points = Array.from({ length: 200 }, (_, place) => edge.getPointAtLength((place / 200) * length));
      const boxes = [...document.querySelectorAll(".flow-frame .signature")].map((label) => label.getBBox());
      return points.filter(({ x, y }) => boxes.some((box) => (
        box.x - 4 <= x && x <= box.x + box.width + 4 && box.y - 4 <= y && y <= box.y + box.height + 4
      ))).map(({ x, y }) => [x, y]);
    })"""
    assert shown.page.evaluate(hidden) == []


def test_a_wide_picture_has_narrow_nodes_where_they_fit(open_page: OpenPage) -> None:
    kinds = []
    for trace in (multi_head(), attnshape.trace("sparse")):
        frame = open_page(page_of(trace), 1600).page.locator(".flow-frame")
        assert frame.evaluate("frame => frame.scrollWidth - frame.clientWidth") <= 0
        kinds.append(frame.locator("svg.narrow").count())
    assert kinds == [0, 1]


def test_the_memory_layout_is_that_of_torch(open_page: OpenPage) -> None:
    shown = open_page(page_of(multi_head()))
    # at B=1, H=2, Lq=3, Lk=2, D=4, Dk=2
    shown.page.locator("button.number").nth(2).click()
    rows = torch.arange(12).view(1, 3, 2, 2)
    grids = [one.get_attribute("aria-label") for one in shown.page.locator(".memory .grid").all()]
    orders = [[int(word) for word in (label or "").partition(": ")[2].split()] for label in grids]
    assert orders == [rows.flatten().tolist(), rows.transpose(1, 2).flatten().tolist()]
    assert ".view can’t merge" in shown.texts(".sentences")[0]
    shown.page.locator("button.number").nth(15).click()
    sentences = shown.texts(".sentences")[0]
    assert "contiguous copies: all 12 elements" in sentences
    shown.page.locator("button.number").nth(1).click()
    assert "can’t merge" not in shown.texts(".sentences")[0]


def test_numbers_are_formatted_as_in_the_tables(open_page: OpenPage) -> None:
    shown = open_page(page_of(multi_head()))
    counts = [0, 12, 1023, 1024, 6400, 9_999, 10_000, 10_189, 122_880, 1_170_000, 99_949, 99_951, 2**31, 3 * 10**12]
    counts += [1024 * quarter // 4 for quarter in range(1, 60)]
    for name, own in (("formatBytes", format_bytes), ("formatCount", format_count)):
        assert shown.page.evaluate(f"{json.dumps(counts)}.map({name})") == list(map(own, counts))
    ratios = [0.00123, 0.1234, 0.125, 0.5, 1.25, 9.31, 12.5, 99.4, 99.6, 1234.5]
    assert shown.page.evaluate(f"{json.dumps(ratios)}.map(formatRatio)") == list(map(format_ratio, ratios))


def test_print_has_no_controls_and_all_rows(open_page: OpenPage) -> None:
    shown = open_page(page_of(deep_model(40)))
    rows = shown.page.locator("tr.step").count()
    shown.page.emulate_media(media="print")
    shown.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert rows < shown.page.locator("tr.step").count() == 720
    assert not shown.page.locator(".sliders input").first.is_visible()


def test_a_link_to_a_result_unfolds_it(open_page: OpenPage) -> None:
    text = find_renderer("html", "traces").render_summary(sample_batches.traces(), Screen(100))
    shown = open_page(text)
    assert shown.page.locator(".flow-frame svg").count() == 0
    shown.page.locator("a[href='#result-1']").click()
    shown.page.wait_for_selector("#result-1[open] .flow-frame svg")
    assert shown.problems == []


def test_print_has_all_results(open_page: OpenPage) -> None:
    text = find_renderer("html", "traces").render_summary(sample_batches.traces(), Screen(100))
    shown = open_page(text)
    shown.page.emulate_media(media="print")
    shown.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    pages = shown.page.locator(".trace").count()
    assert pages > 1
    assert shown.page.locator(".trace.ready").count() == pages
    assert shown.page.locator(".flow-frame svg").count() == shown.page.locator(".flow.panel:visible").count() > 1
    assert shown.page.locator(".results > details:not([open])").count() == 0


def test_a_click_on_the_picture_keeps_it_in_sight(open_page: OpenPage) -> None:
    for width in (400, 1600):
        shown = open_page(page_of(multi_head()), width)
        shown.page.emulate_media(reduced_motion="reduce")
        node = shown.page.locator(".flow-frame .node").nth(3)
        node.click()
        box, details = node.bounding_box(), shown.page.locator(".details").bounding_box()
        assert 0 <= box["y"] <= 900 - box["height"]
        assert width > 1000 or box["y"] + box["height"] <= details["y"]
        shown.page.get_by_role("button", name="row in the table").click()
        row = shown.page.locator("tr.selected").bounding_box()
        assert 0 <= row["y"] <= 900 - row["height"]
        assert width > 1000 or row["y"] + row["height"] <= details["y"]
