"""Pages opened in a real browser: headless Chromium, driven by playwright; a skip with a reason where either is absent.

A page is opened as a file. What it logs as an error, and every request that is neither the page itself nor data inside it, is kept.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

PHONE, DESKTOP = 390, 1280
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@dataclass
class OpenedPage:
    """Is a page in the browser: playwright's own `page`, the errors that it logged, and the requests that left it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        """Returns the text of every element, hidden ones too."""
        return self.page.eval_on_selector_all(selector, "found => found.map(one => one.textContent)")

    def screenshot(self, path: Path) -> Path:
        """Writes a picture of the whole page."""
        self.page.screenshot(path=str(path), full_page=True)
        return path

    def overflow(self) -> float:
        """Returns by how many pixels the page is wider than its window."""
        return self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def find_browser() -> str:
    """Returns the browser's program, or skips the test."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    found = next((path for path in map(shutil.which, _NAMES) if path is not None), None)
    if found is None:
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    return found


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    """Starts a browser and ends it."""
    program = find_browser()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def open_page(
    browser: Any, file: Path, *, width: int = DESKTOP, height: int = 900, scheme: Literal["light", "dark"] = "light"
) -> Iterator[OpenedPage]:
    """Opens a file of HTML in a window of a width, with the colours that the person prefers."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    try:
        opened = OpenedPage(context.new_page())
        address = file.resolve().as_uri()
        opened.page.on("console", lambda said: opened.errors.append(said.text) if said.type == "error" else None)
        opened.page.on("pageerror", lambda error: opened.errors.append(str(error)))
        opened.page.on("request", lambda sent: _note_request(opened, sent.url, address))
        opened.page.goto(address, wait_until="load")
        yield opened
    finally:
        context.close()


def _note_request(opened: OpenedPage, url: str, address: str) -> None:
    if url.split("#")[0] != address and not url.startswith(("data:", "blob:")):
        opened.requests.append(url)
