"""The certificate of a verification: its numbers, its hashes, and its page in a real browser."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_support import DESKTOP, PHONE, open_browser, open_page
from run_support import make_spec

from roiline.checks.verify.certificate import (
    Compared,
    describe_failure,
    describe_verdict,
    make_certificate,
    write_certificate,
)
from roiline.checks.verify.measures import TOLERANCES, Measure, gather_stages
from roiline.checks.verify.pictures import generate_picture
from roiline.checks.verify.verification import Picture, Verification

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
GOOD = (
    Measure("input", "data", 0, (1, 3, 64, 96), 3e-6, 2e-8, 1e-3),
    Measure("body res2", "res2_2_sum", 0, (1, 256, 16, 24), 2e-5, 4.5e-7, 1e-4),
    Measure("body res2", "res2_2_sum", 1, (1, 256, 24, 16), 3e-5, 6.5e-7, 1e-4),
    Measure("proposals", "boxes", 0, (100,), 0.0123, 0.0, 0.01),
)
BAD = (
    Measure("box head: RoI features", "roi_feat", 0, (100, 256, 7, 7), 0.31, 0.27, 1e-4),
    Measure("box head", "cls_score", 0, (100, 4), math.inf, math.inf, 1e-4, "it has values that are no numbers"),
)


def make_case(folder: Path, measures: tuple[Measure, ...]) -> dict[str, Any]:
    files = {}
    for name in ("model", "weights", "configuration"):
        files[name] = folder / f"<{name}>.bin"
        files[name].write_bytes(name.encode())
    found = Verification(
        spec=make_spec(),
        stages=gather_stages(measures),
        tolerances=TOLERANCES["fp32"],
        engines=({"engine": "onnxruntime", "version": "1.0", "threads": "2"},),
        not_compared=("a_tensor",),
        notes=("a note with <b>",),
    )
    picture = Picture("made up", generate_picture(0, 20, 30))
    return make_certificate(found, Compared(files, [("FPN.DIM", "32")], [picture]), now=NOW)


def test_it_says_what_was_compared_and_what_came_out(tmp_path: Path) -> None:
    certificate = make_case(tmp_path, GOOD)
    assert certificate["passed"] is True
    assert certificate["first_failed_stage"] is None
    assert [stage["name"] for stage in certificate["stages"]] == ["input", "body res2", "proposals"]
    assert certificate["stages"][1]["worst"]["error"] == 6.5e-7
    assert certificate["files"]["model"]["sha256"] == hashlib.sha256(b"model").hexdigest()
    pixels = generate_picture(0, 20, 30)
    assert certificate["pictures"][0]["pixels_sha256"] == hashlib.sha256(pixels.tobytes()).hexdigest()
    lines = describe_verdict(certificate).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["pass"] * 3


def test_a_failure_names_the_first_stage_in_one_line(tmp_path: Path) -> None:
    certificate = make_case(tmp_path, GOOD + BAD)
    assert certificate["first_failed_stage"] == "box head: RoI features"
    said = describe_failure(certificate)
    assert "\n" not in said
    assert "`box head: RoI features`, at roi_feat: error 0.27, tolerance 0.0001" in said
    assert "FAIL  box head" in describe_verdict(certificate)
    assert certificate["stages"][-1]["worst"]["error"] is None


def test_files_are_whole_and_the_page_escapes_names(tmp_path: Path) -> None:
    page, record = write_certificate(tmp_path / "out", make_case(tmp_path, GOOD))
    assert json.loads(record.read_text())["kind"] == "roiline certificate"
    text = page.read_text()
    assert "&lt;model&gt;.bin" in text
    assert "<b>" not in text.replace("<b>Passed</b>", "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("measures", [GOOD, GOOD + BAD], ids=["passed", "failed"])
def test_the_page_is_alone_fits_and_says_the_records_numbers(
    browser: Any, tmp_path: Path, width: int, scheme: Any, measures: tuple[Measure, ...]
) -> None:
    certificate = make_case(tmp_path, measures)
    file, _ = write_certificate(tmp_path / "out", certificate)
    with open_page(browser, file, width=width, scheme=scheme) as opened:
        assert (opened.errors, opened.requests) == ([], [])
        assert opened.overflow() <= 0
        verdict = opened.page.locator("#verdict").text_content()
        assert verdict.startswith("Passed" if certificate["passed"] else "Failed at: box head: RoI features")
        shown = opened.page.eval_on_selector_all(
            "[data-value]", "found => found.map(one => [one.dataset.value, one.textContent])"
        )
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 18, 22)")
    assert len(shown) >= 3 * len(certificate["stages"]) - 2
    for path, text in shown:
        assert float(text) == pytest.approx(_find(certificate, path), rel=6e-3), path


@pytest.mark.browser
def test_measures_open_and_it_prints_without_its_button(browser: Any, tmp_path: Path) -> None:
    file, _ = write_certificate(tmp_path / "out", make_case(tmp_path, GOOD))
    with open_page(browser, file, scheme="dark") as opened:
        details = opened.page.locator("#measures details").nth(1)
        assert not details.locator("table").is_visible()
        details.locator("summary").click()
        assert details.locator("tbody tr").count() == 2
        opened.page.emulate_media(media="print", color_scheme="dark")
        assert not opened.page.locator("#theme").is_visible()
        assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def _find(certificate: dict[str, Any], path: str) -> float:
    value: Any = certificate
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return float(np.float64(value))
