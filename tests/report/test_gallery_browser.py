"""The gallery in a real browser: it filters, sorts and compares, asks for nothing but its own pictures, and fits a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from browser_support import DESKTOP, PHONE, open_browser, open_page

from roiline.infer.datasets import load_dataset
from roiline.report.drawn_results import DrawingRequest
from roiline.report.gallery.making import make_gallery

pytestmark = pytest.mark.browser

COUNT = 60
CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 5, "name": "dog"}]


def record(image_id: int, category: int, score: float, left: float = 10) -> dict[str, Any]:
    return {"image_id": image_id, "category_id": category, "bbox": [left, 20, 40, 50], "score": score}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Galleries of one run and of two: every picture has a cat; every third a dog in A only; picture 7 a cat in B only."""
    root = tmp_path_factory.mktemp("gallery")
    (root / "in").mkdir()
    images = []
    for number in range(COUNT):
        cv2.imwrite(str(root / "in" / f"p{number}.png"), np.full((120, 160, 3), 3 * number, np.uint8))
        images.append({"id": number, "file_name": f"p{number}.png", "height": 120, "width": 160})
    truth = [{"id": 1, "image_id": 0, "category_id": 3, "bbox": [10, 20, 40, 50], "area": 2000, "iscrowd": 0}]
    (root / "pets.json").write_text(json.dumps({"images": images, "categories": CATEGORIES, "annotations": truth}))
    cats = [record(number, 3, 0.75) for number in range(COUNT)]
    dogs = [record(number, 5, 0.9, left=100) for number in range(0, COUNT, 3)]
    (root / "a.json").write_text(json.dumps([*cats, *dogs]))
    (root / "b.json").write_text(json.dumps([*cats, record(7, 3, 0.95, left=100), record(8, 3, 0.3, left=100)]))
    dataset = load_dataset(root / "pets.json", images=root / "in")
    make_gallery(root / "a.json", dataset, root / "one", DrawingRequest(ground_truth=True))
    make_gallery(root / "a.json", dataset, root / "two", DrawingRequest(), against=root / "b.json")
    return root


def move_slider(page: Any, value: float) -> None:
    page.eval_on_selector(
        "#thresh", "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", value
    )


def ids(opened: Any) -> list[str]:
    return opened.page.eval_on_selector_all("figure", "found => found.map(one => one.dataset.id)")


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "two"])
def test_it_is_quiet_fits_and_asks_for_its_own_pictures_only(
    browser: Any, folder: Path, name: str, width: int, scheme: Any
) -> None:
    with open_page(browser, folder / name / "index.html", width=width, scheme=scheme) as opened:
        opened.page.wait_for_selector("figure img")
        assert opened.errors == []
        own = (folder / name / "pictures").resolve().as_uri()
        assert opened.requests
        assert all(request.startswith(own) for request in opened.requests)
        assert opened.overflow() <= 0
        opened.page.locator("figure").first.click()
        assert opened.overflow() <= 0
        picture = opened.page.locator("#stage img")
        assert picture.evaluate("one => one.complete || new Promise(done => one.onload = () => done(true))")
        assert picture.bounding_box()["width"] > 0.5 * min(width, 600)
        assert opened.errors == []


def test_it_filters_by_score_class_and_id(browser: Any, folder: Path) -> None:
    with open_page(browser, folder / "one" / "index.html") as opened:
        page = opened.page
        assert opened.texts("#count") == ["60 of 60 pictures, 80 boxes"]
        assert opened.texts("[data-label]") == ["cat60", "dog20"]
        move_slider(page, 0.8)
        assert opened.texts("#count") == ["20 of 60 pictures, 20 boxes"]
        assert ids(opened) == [str(number) for number in range(0, COUNT, 3)]
        assert opened.texts("[data-label]") == ["cat0", "dog20"]
        move_slider(page, 0.5)
        page.get_by_role("button", name="dog").click()
        assert opened.texts("#count") == ["60 of 60 pictures, 60 boxes"]
        page.get_by_role("button", name="all / none").click()
        assert opened.texts("#count") == ["60 of 60 pictures, 80 boxes"]
        page.locator("#find").fill("12")
        assert ids(opened) == ["12"]
        assert opened.texts("figcaption span") == ["2"]
        page.locator("#find").fill("nothing")
        assert page.locator("#empty").is_visible()
        assert opened.errors == []


def test_it_sorts_and_adds_pictures_as_they_are_scrolled_to(browser: Any, folder: Path) -> None:
    with open_page(browser, folder / "one" / "index.html") as opened:
        page = opened.page
        assert ids(opened) == [str(number) for number in range(48)]
        page.mouse.wheel(0, 50_000)
        page.wait_for_function(f"document.querySelectorAll('figure').length === {COUNT}")
        page.locator("#sort").select_option("most")
        assert ids(opened)[:20] == [str(number) for number in range(0, COUNT, 3)]
        page.locator("#sort").select_option("least")
        assert ids(opened)[:2] == ["1", "2"]


def test_boxes_lie_where_they_are_in_the_picture(browser: Any, folder: Path) -> None:
    measure = """() => { const figure = document.querySelector("figure"), view = figure.querySelector("img").getBoundingClientRect();
      return [...figure.querySelectorAll("rect:not(.halo)")].map(one => { const box = one.getBoundingClientRect();
        return [(box.left - view.left) * 160 / view.width, (box.top - view.top) * 120 / view.height,
          box.width * 160 / view.width, box.height * 120 / view.height]; }); }"""
    with open_page(browser, folder / "one" / "index.html") as opened:
        first, second = sorted(opened.page.evaluate(measure))
        assert first == pytest.approx([10, 20, 40, 50], abs=2)
        assert second == pytest.approx([100, 20, 40, 50], abs=2)
        opened.page.locator("#truth").check()
        assert len(opened.page.evaluate(measure)) == 3


def test_it_shows_what_differs_between_two_runs(browser: Any, folder: Path) -> None:
    with open_page(browser, folder / "two" / "index.html") as opened:
        page = opened.page
        assert opened.texts("#count") == ["60 of 60 pictures, 81 boxes, 21 in one run only"]
        page.locator("#differing").check()
        assert sorted(map(int, ids(opened))) == sorted([7, *range(0, COUNT, 3)])
        kinds = {
            key: page.locator(f"figure[data-id='{key}'] rect:not(.halo)").evaluate_all(
                "found => found.map(one => one.getAttribute('class')).sort()"
            )
            for key in (3, 7)
        }
        assert kinds == {3: ["both", "only-a"], 7: ["both", "only-b"]}
        move_slider(page, 0.2)
        assert "8" in ids(opened)
        page.get_by_role("button", name="B: b.json").click()
        page.locator("#differing").uncheck()
        assert opened.texts("#count") == ["60 of 60 pictures, 62 boxes"]
        assert opened.errors == []


def test_a_picture_at_large_has_names_and_a_list(browser: Any, folder: Path) -> None:
    with open_page(browser, folder / "one" / "index.html") as opened:
        page = opened.page
        page.locator("figure[data-id='3']").click()
        assert opened.texts("#name") == ["3  (4 of 60)"]
        assert opened.texts("#stage text") == ["dog 0.90", "cat 0.75"]
        assert opened.texts("#rows td") == ["dog", "0.90", "cat", "0.75"]
        page.locator("#rows tr").first.hover()
        assert page.locator("#stage g.faded").count() == 1
        page.keyboard.press("ArrowRight")
        assert opened.texts("#name") == ["4  (5 of 60)"]
        page.get_by_role("button", name="Close").click()
        assert not page.locator("#large").is_visible()
