"""certificate.html: one page that needs nothing else, no network and no other file; every number on it is looked up in the certificate."""

from __future__ import annotations

from typing import Any, TypeAlias

from roiline.report.benchmark.style import SCRIPT, style_sheet
from roiline.report.benchmark.writing import escape, make_facts, make_table

Certificate: TypeAlias = dict[str, Any]

_CSS = """
.verdict-card { border: 2px solid var(--good); border-radius: 12px; padding: 14px 18px; margin: 22px 0 8px; background: var(--card); }
.verdict-card.failed { border-color: var(--bad); } .verdict-card b { font-size: 1.3rem; color: var(--good); display: block; }
.verdict-card.failed b { color: var(--bad); } .pass { color: var(--good); font-weight: 600; } .fail { color: var(--bad); font-weight: 600; }
code { overflow-wrap: anywhere; font-size: .85em; } .bar { display: inline-block; vertical-align: middle; width: 90px; height: 9px;
  border-radius: 5px; background: var(--idle); overflow: hidden; } .bar i { display: block; height: 100%; background: var(--good); }
.fail-row .bar i { background: var(--bad); } details table td { white-space: normal; }
td code { white-space: nowrap; overflow-wrap: normal; } td.text:has(code) { white-space: nowrap; }
"""


def make_page(certificate: Certificate) -> str:
    """Returns the page of a certificate."""
    model = certificate["model"]
    title = f"{certificate['files']['model']['name']}: {'the same network' if certificate['passed'] else 'not the same network'}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style_sheet()}{_CSS}</style></head><body><main>"
        f"<header><h1>{escape(certificate['files']['model']['name'])}</h1>"
        '<button type="button" id="theme">Colours: auto</button></header>'
        f'<p class="soft about">{escape(model["architecture"])}, {escape(model["precision"])}, of a {escape(model["source"])} checkpoint; '
        f'compared <span class="nowrap">{_name_time(certificate)}</span></p>'
        f"{_show_verdict(certificate)}"
        f'<section id="stages"><h2>Stage by stage</h2>{_show_stages(certificate)}</section>'
        f'<section id="compared"><h2>What was compared</h2>{_show_files(certificate)}</section>'
        f'<section id="rules"><h2>What may differ</h2>{_show_tolerances(certificate)}</section>'
        f'<section id="measures"><h2>Every measure</h2>{_show_measures(certificate)}</section>'
        f'<section id="machine"><h2>By what</h2>{_show_versions(certificate)}</section>'
        '<p class="soft">Every number of this page is in certificate.json.</p>'
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _name_time(certificate: Certificate) -> str:
    return escape(certificate["created_at"].replace("T", " ").replace("+00:00", " UTC"))


def _show_verdict(certificate: Certificate) -> str:
    pictures = len(certificate["pictures"])
    count = sum(len(stage["measures"]) for stage in certificate["stages"])
    if certificate["passed"]:
        return (
            '<div class="verdict-card" id="verdict"><b>Passed</b>The model computes what its checkpoint describes: '
            f"{count} comparisons in {len(certificate['stages'])} stages on {pictures} picture{'s' if pictures != 1 else ''}, "
            "all within their tolerances.</div>"
        )
    stage = next(stage for stage in certificate["stages"] if not stage["passed"])
    note = f" ({escape(stage['worst']['note'])})" if stage["worst"]["note"] else ""
    return (
        f'<div class="verdict-card failed" id="verdict"><b>Failed at: {escape(stage["name"])}</b>'
        f"The first stage that leaves its tolerance, at <code>{escape(stage['worst']['name'])}</code>{note}. "
        "Every stage is fed with the reference's own numbers, so what fails here is wrong here.</div>"
    )


def _show_stages(certificate: Certificate) -> str:
    rows = []
    for index, stage in enumerate(certificate["stages"]):
        worst, path = stage["worst"], f"stages.{index}.worst"
        rows.append(
            (
                escape(stage["name"]),
                _show_pass(passed=stage["passed"]),
                _show_number(worst["error"], f"{path}.error"),
                _show_number(worst["tolerance"], f"{path}.tolerance"),
                _show_number(worst["absolute"], f"{path}.absolute"),
                f"<code>{escape(worst['name'])}</code>",
            )
        )
    table = make_table(("Stage", "", "Worst error", "Tolerance", "Largest difference", "At"), rows, text_columns=(1, 5))
    return (
        "<p>The reference is a network in plain numpy, built from the weights and the configuration alone. Each part of the model is fed "
        "with the reference's numbers; the last row is the whole model on the pictures themselves.</p>" + table
    )


def _show_pass(*, passed: bool) -> str:
    return '<span class="pass">pass</span>' if passed else '<span class="fail">fail</span>'


def _show_number(value: float | None, path: str) -> str:
    if value is None:
        return "not finite"
    text = "0" if value == 0 else f"{value:.2e}" if value < 0.01 or value >= 1000 else f"{value:.3g}"
    return f'<span data-value="{escape(path)}">{text}</span>'


def _show_files(certificate: Certificate) -> str:
    facts = [
        (name, f"{escape(file['name'])}, {file['bytes']:,} bytes<br><code>SHA-256 {file['sha256']}</code>")
        for name, file in certificate["files"].items()
    ]
    facts += [
        (
            f"picture {index + 1}",
            f"{escape(picture['name'])}, {picture['width']} x {picture['height']}<br>"
            f"<code>SHA-256 {'of its pixels ' if picture['sha256'] is None else ''}{picture['sha256'] or picture['pixels_sha256']}</code>",
        )
        for index, picture in enumerate(certificate["pictures"])
    ]
    if certificate["options"]:
        facts.append(
            ("options", "<br>".join(f"<code>{escape(' '.join(pair))}</code>" for pair in certificate["options"]))
        )
    facts += [("note", escape(note)) for note in certificate["notes"]]
    if certificate["not_compared"]:
        facts.append(("not compared", f"<code>{escape(', '.join(certificate['not_compared']))}</code>"))
    return make_facts(facts)


def _show_tolerances(certificate: Certificate) -> str:
    meanings = {
        "settings": "what the model says of itself must be what the configuration says, setting by setting",
        "input": "the network's input: largest difference over the largest value",
        "weights": "parameters of an fp32 model: as a tensor",
        "tensor": "a tensor, both sides fed with the same numbers: largest difference over its largest value",
        "score": "scores of two boxes that are one box",
        "unmatched": "share of boxes without a partner (same class, overlap of 0.99, scores alike), both sides fed with the same numbers",
        "whole": "that share where each side made its own from the picture",
        "engine": "that share of another engine against ONNX Runtime",
        "maps": "masks and heatmaps of boxes that each side found itself: as a tensor",
    }
    limits = certificate["tolerances"]
    rows = [
        (_show_number(limits[name], f"tolerances.{name}") if name in limits else "equal", meaning)
        for name, meaning in meanings.items()
    ]
    return make_table(("Tolerance", "Of"), rows, text_columns=(1,))


def _show_measures(certificate: Certificate) -> str:
    parts = []
    for stage in certificate["stages"]:
        rows = [
            (
                f"<code>{escape(one['name'])}</code>",
                "" if one["picture"] is None else str(one["picture"] + 1),
                " x ".join(map(str, one["shape"])),
                "not finite" if one["error"] is None else f"{one['error']:.2e}",
                "not finite" if one["absolute"] is None else f"{one['absolute']:.2e}",
                escape(one["note"]),
            )
            for one in stage["measures"]
        ]
        table = make_table(("Of", "Picture", "Shape", "Error", "Difference", ""), rows, text_columns=(5,))
        parts.append(
            f"<details><summary>{escape(stage['name'])}: {len(rows)}, {_show_pass(passed=stage['passed'])}</summary>{table}</details>"
        )
    return "".join(parts)


def _show_versions(certificate: Certificate) -> str:
    facts = [(name, escape(text)) for name, text in certificate["versions"].items()]
    facts += [
        ("engine", escape(", ".join(f"{name} {value}" for name, value in engine.items())))
        for engine in certificate["engines"]
    ]
    return make_facts(facts)
