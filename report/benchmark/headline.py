"""The top of a throughput report: the rates, what limits the run, and what makes the numbers less than sure."""

from __future__ import annotations

from roiline.report.benchmark.document import Report
from roiline.report.benchmark.writing import Numbers, escape

_BUSY_LOAD = 0.5
_ENGINE_LIMITS = 0.9
_RESTLESS = 0.15


def show_headline(n: Numbers) -> str:
    """Returns the cards at the top, the sentence that says what limits the run, and how far to trust it."""
    doubts = "".join(f'<p class="soft"><strong>{escape(doubt)}</strong></p>' for doubt in find_doubts(n.report))
    failures = ""
    if n.report["headline"]["failed"]:
        failures = f" <strong>{n.number('headline.failed', 0)} pictures failed.</strong>"
    return (
        f'<div class="cards">{_show_cards(n)}</div><p class="verdict">{escape(judge(n.report))}</p>'
        f'<p class="soft">{_name_rounds(n)} Opening the model and merging the results are not in the wall time.{failures}</p>{doubts}'
    )


def _show_cards(n: Numbers) -> str:
    cards = [
        _card(
            "End to end",
            n.number("headline.images_per_s"),
            "images/s",
            f"{n.number('headline.images', 0)} images in {n.number('headline.wall_s', 2)} s",
        ),
        _card(
            "Engine alone",
            n.number("headline.engine_images_per_s"),
            "images/s",
            f"{n.number('headline.engine_images', 0)} prepared images in {n.number('headline.engine_seconds', 2)} s",
        ),
        _card(
            "Of the engine's rate",
            n.number("headline.share_of_engine", 0, factor=100),
            "%",
            "end to end / engine alone",
        ),
    ]
    if n.report["baseline"] is not None:
        before = f"it had {n.number('baseline.images_per_s')} images/s"
        cards.append(_card("Over the baseline", n.number("baseline.speed_up", 2), "times", before))
    return "".join(cards)


def _name_rounds(n: Numbers) -> str:
    count = len(n.report["spread"]["images_per_s"]["rounds"])
    if count == 1:
        return "One round: how much rounds differ is not known."
    return (
        f"The round of median rate among {count}, which ran at {n.number('spread.images_per_s.least')} to "
        f"{n.number('spread.images_per_s.most')} images/s."
    )


def find_doubts(report: Report) -> list[str]:
    """Returns what makes the numbers less than sure: a machine that was busy before, rounds that differ much."""
    doubts = []
    load, cores = report["machine"]["load_at_start"][0], report["machine"]["usable_cores"]
    if load > _BUSY_LOAD * cores:
        doubts.append(
            f"The machine was busy when this was measured (load {load:.1f} on {cores} usable cores): it can do more than this."
        )
    if report["baseline"] is not None and report["baseline"]["not_alike"]:
        names = ", ".join(name.replace("_", " ") for name in report["baseline"]["not_alike"])
        doubts.append(f"The baseline was measured with something else ({names}): the factor is not that of one change.")
    if report["headline"]["share_of_engine"] > 1 + _RESTLESS:
        doubts.append(
            "The run was faster than the engine alone, which cannot be: the machine's speed changed between the two, or the few pictures "
            "that the engine was measured with are larger than the others."
        )
    rates = report["spread"]["images_per_s"]
    apart = rates["most"] / rates["least"] - 1
    if apart > _RESTLESS:
        doubts.append(
            f"The fastest round was {100 * apart:.0f} % faster than the slowest: small differences mean nothing here."
        )
    return doubts


def judge(report: Report) -> str:
    """Returns one sentence that says what limits the run, from how the main lanes spent their time."""
    lanes = report["model_lanes"]
    engine, waits, pictures, end = (
        sum(lane[name] for lane in lanes) / len(lanes)
        for name in ("engine_share", "wait_share", "picture_share", "end_share")
    )
    inside = f"The model lanes were inside the engine {100 * engine:.0f} % of the time and waited {100 * waits:.0f} %"
    if engine >= _ENGINE_LIMITS:
        return f"{inside}: the engine is the limit; only a faster engine or more devices would raise the rate."
    around = 1 - engine - waits
    if pictures >= max(end, around):
        return f"{inside}, mostly for pictures: reading, decoding and preparing them is the limit."
    if end >= around:
        return f"{inside}, mostly at the end, with nothing left to do: there were too few pictures for so many workers to end together."
    return f"{inside}: what is left went into copying, post-processing and reports around the engine."


def _card(name: str, big: str, unit: str, foot: str) -> str:
    return (
        f'<div class="card"><div class="name">{name}</div><div class="big">{big} <small>{unit}</small></div>'
        f'<div class="foot">{foot}</div></div>'
    )
