"""The report in a real browser: nothing leaves the page, its numbers are the report's, its buttons work, and it fits a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_cases import make_case_report
from browser_support import DESKTOP, PHONE, open_browser, open_page

from roiline.report.benchmark.document import find
from roiline.report.benchmark.page import make_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report() -> dict:
    return json.loads(json.dumps(make_case_report()))


@pytest.fixture(scope="module")
def file(report: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(make_page(report))
    return path


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_alone_quiet_and_fits(browser: Any, file: Path, width: int, scheme: Any) -> None:
    with open_page(browser, file, width=width, scheme=scheme) as opened:
        assert (opened.errors, opened.requests) == ([], [])
        assert opened.overflow() <= 0
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 18, 22)")
        charts = opened.page.locator("svg.wide" if width == DESKTOP else "svg.narrow")
        assert charts.first.is_visible()
        assert not opened.page.locator("svg.narrow" if width == DESKTOP else "svg.wide").first.is_visible()


def test_numbers_on_the_page_are_the_reports(browser: Any, file: Path, report: dict) -> None:
    with open_page(browser, file) as opened:
        shown = opened.page.eval_on_selector_all(
            "[data-value]", "found => found.map(one => [one.dataset.value, one.dataset.factor || '1', one.textContent])"
        )
    assert len(shown) > 120
    for path, factor, text in shown:
        decimals = len(text.partition(".")[2])
        assert float(text.replace(",", "")) == pytest.approx(
            float(factor) * find(report, path), abs=0.5 * 10**-decimals * (1 + 1e-9)
        ), path


def test_buttons_choose_the_distribution_and_the_colours(browser: Any, file: Path) -> None:
    with open_page(browser, file) as opened:
        page = opened.page
        assert page.locator("#latency-in_pipeline").is_visible()
        assert not page.locator("#latency-service").is_visible()
        page.get_by_role("button", name="Work only").click()
        assert page.locator("#latency-service").is_visible()
        assert not page.locator("#latency-in_pipeline").is_visible()
        assert page.get_by_role("button", name="Work only").get_attribute("aria-pressed") == "true"
        button = page.locator("#theme")
        colours = {}
        for name in ("light", "dark", "auto"):
            button.click()
            assert button.text_content() == f"Colours: {name}"
            colours[name] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colours["light"] == colours["auto"] != colours["dark"]
        assert not page.locator("details table").is_visible()
        page.get_by_text("The numbers", exact=True).click()
        assert page.locator("details table").is_visible()
        assert opened.errors == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_letters_in_charts_do_not_leave_them_and_can_be_read(browser: Any, file: Path, width: int) -> None:
    measure = """() => [...document.querySelectorAll("svg.chart")].filter(one => one.getBoundingClientRect().width > 0)
      .flatMap(chart => { const outer = chart.getBoundingClientRect(); return [...chart.querySelectorAll("text")].map(text => {
        const inner = text.getBoundingClientRect(); return [text.textContent, inner.left - outer.left, outer.right - inner.right,
          inner.top - outer.top, outer.bottom - inner.bottom, inner.height]; }); })"""
    with open_page(browser, file, width=width) as opened:
        texts = opened.page.evaluate(measure)
    assert len(texts) > 40
    for text, *margins, height in texts:
        assert min(margins) > -2, (text, margins)
        assert height >= 10, (text, height)


def test_it_prints_in_light_colours_without_its_buttons(browser: Any, file: Path) -> None:
    with open_page(browser, file, scheme="dark") as opened:
        opened.page.emulate_media(media="print", color_scheme="dark")
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not opened.page.locator("#theme").is_visible()
