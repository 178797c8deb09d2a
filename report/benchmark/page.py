"""report.html: one page that needs nothing else, no network and no other file."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from roiline.report.benchmark.document import Report
from roiline.report.benchmark.headline import show_headline
from roiline.report.benchmark.sections import SECTIONS
from roiline.report.benchmark.style import SCRIPT, style_sheet
from roiline.report.benchmark.writing import Numbers, escape


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """Is one small picture with its results drawn: JPEG bytes, its size in pixels, and what it is called."""

    jpeg: bytes
    width: int
    height: int
    caption: str


def make_page(report: Report, thumbnails: Sequence[Thumbnail] = ()) -> str:
    """Returns the page of a report."""
    n = Numbers(report)
    subject = report["subject"]
    title = f"{subject['model']}: {report['headline']['images_per_s']:.1f} images/s"
    sections = "".join(
        f'<section id="{key}"><h2>{heading}</h2>{show(n)}</section>' for key, heading, show in SECTIONS[:-1]
    )
    last_key, last_heading, show_last = SECTIONS[-1]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style_sheet()}</style></head><body><main>"
        f'<header><h1>{escape(subject["model"])}</h1><button type="button" id="theme">Colours: auto</button></header>'
        f'<p class="soft about">Throughput of {escape(subject["architecture"])} over {escape(", ".join(subject["data"]))}, '
        f'{escape(_name_workers(subject))}, measured <span class="nowrap">{_name_time(report)}</span></p>'
        f"{show_headline(n)}{sections}{_show_pictures(thumbnails)}"
        f'<section id="{last_key}"><h2>{last_heading}</h2>{show_last(n)}</section>'
        f'<p class="soft">Every number of this page is in report.json; trace.json opens in <code>ui.perfetto.dev</code>.</p>'
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _name_workers(subject: Report) -> str:
    count = len(subject["devices"])
    return f"{count} {'worker' if count == 1 else 'workers'}, batch size {subject['batch_size']}"


def _name_time(report: Report) -> str:
    return escape(report["created_at"].replace("T", " ").replace("+00:00", " UTC"))


def _show_pictures(thumbnails: Sequence[Thumbnail]) -> str:
    if not thumbnails:
        return ""
    figures = "".join(
        f'<figure><img alt="{escape(one.caption)}" width="{one.width}" height="{one.height}" '
        f'src="data:image/jpeg;base64,{base64.b64encode(one.jpeg).decode()}"><figcaption>{escape(one.caption)}</figcaption></figure>'
        for one in thumbnails
    )
    return (
        '<section id="pictures"><h2>What it found</h2><p>A few of the pictures with their results, so that a fast run that finds nothing '
        f'is seen.</p><div class="pictures">{figures}</div></section>'
    )
