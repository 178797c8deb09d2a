"""The gallery's page: controls, an empty grid that its script fills, and everything that it shows as JSON inside it."""

from __future__ import annotations

import html
import json

from roiline.report.gallery.content import Plain
from roiline.report.gallery.script import SCRIPT
from roiline.report.gallery.style import style_sheet

_SORTS = (("order", "dataset order"), ("most", "most boxes"), ("best", "best score"), ("least", "lowest best score"))


def make_gallery_page(content: Plain) -> str:
    """Returns the page of a gallery; its pictures are files beside it."""
    title = html.escape(content["title"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{style_sheet()}</style></head><body>"
        f'<header><div class="top"><h1>{title}</h1><span id="count" aria-live="polite"></span></div>'
        f"{_show_controls(content)}{_show_runs(content)}{_show_classes(content)}</header>"
        '<main><div id="grid"></div><p id="empty" hidden>Nothing passes these filters.</p></main>'
        '<dialog id="large"><div class="bar"><b id="name"></b><button type="button" id="before" aria-label="Before">&larr;</button>'
        '<button type="button" id="after" aria-label="Next">&rarr;</button><button type="button" id="close">Close</button></div>'
        '<div class="large"><div class="stage" id="stage"></div><div class="list"><table><tbody id="rows"></tbody></table></div></div>'
        f'</dialog><script type="application/json" id="data">{_embed(content)}</script><script>{SCRIPT}</script></body></html>\n'
    )


def _embed(content: Plain) -> str:
    """Returns JSON that ends no script element."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _show_controls(content: Plain) -> str:
    sorts = (("difference", "most different"), *_SORTS) if len(content["names"]) == 2 else _SORTS
    choices = "".join(f'<option value="{value}">{text}</option>' for value, text in sorts)
    switches = [("labels", "Labels", False)]
    if any("masks" in side for picture in content["pictures"] for side in picture["sides"]):
        switches.append(("masks", "Masks", True))
    if any("keypoints" in side for picture in content["pictures"] for side in picture["sides"]):
        switches.append(("keypoints", "Keypoints", True))
    if any("truth" in picture for picture in content["pictures"]):
        switches.append(("truth", "Ground truth", False))
    boxes = "".join(
        f'<label><input type="checkbox" id="{key}"{" checked" if on else ""}>{text}</label>'
        for key, text, on in switches
    )
    return (
        '<div class="row"><label>Score from <input type="range" id="thresh" min="0" max="1" step="0.01"><output id="thresh-value">'
        f'</output></label><label>Sort <select id="sort">{choices}</select></label>'
        f'<label>Find <input type="search" id="find" placeholder="image id"></label>{boxes}</div>'
    )


def _show_runs(content: Plain) -> str:
    """Returns what chooses between two runs and their differences; nothing for one run."""
    if len(content["names"]) != 2:
        return '<div id="legend" hidden></div>'
    a, b = (html.escape(name) for name in content["names"])
    modes = (("differences", "Differences", "true"), ("0", f"A: {a}", "false"), ("1", f"B: {b}", "false"))
    buttons = "".join(
        f'<button type="button" data-mode="{mode}" aria-pressed="{pressed}">{text}</button>'
        for mode, text, pressed in modes
    )
    legend = "".join(
        f'<span class="{key}"><i></i>{text}</span>'
        for key, text in (("only-a", f"only in {a}"), ("only-b", f"only in {b}"), ("both", "in both"))
    )
    return (
        f'<div class="row"><div class="modes">{buttons}</div><label><input type="checkbox" id="differing">Only pictures that differ</label>'
        f'<div class="legend" id="legend">{legend}</div></div>'
    )


def _show_classes(content: Plain) -> str:
    if content["kind"] == "proposals":
        return ""
    present = sorted({box[0] for picture in content["pictures"] for side in picture["sides"] for box in side["boxes"]})
    names = content["classes"]
    chips = "".join(
        f'<button type="button" data-label="{label}" aria-pressed="true"><i class="dot"></i>'
        f'{html.escape(names[label - 1] if label <= len(names) else f"class_{label}")}<span class="n"></span></button>'
        for label in present
    )
    return (
        f'<div class="row"><div class="chips"><button type="button" id="every">all / none</button>{chips}</div></div>'
    )
