"""report.json: every number of a benchmark, those that were measured and those that follow from them, as plain JSON.

Everything that the page shows is looked up here, so the page cannot say another number than the file.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from roiline.core.errors import DataError
from roiline.core.files import read_json_object
from roiline.core.records import plain_from_record
from roiline.infer.benchmark import Benchmark, middle, spread
from roiline.infer.benchmark_operations import PARTS
from roiline.infer.benchmark_trace import ENGINE_STAGES, lane_group

FORMAT_VERSION = 1
KIND = "roiline benchmark"
REPORT_FILE = "report.json"

Report: TypeAlias = dict[str, Any]

WAITS = ("wait_picture", "wait_write", "wait_end")
_ALIKE = (
    ("subject", "architecture"),
    ("subject", "task"),
    ("subject", "data"),
    ("subject", "images"),
    ("subject", "devices"),
    ("subject", "batch_size"),
    ("machine", "processor"),
    ("machine", "usable_cores"),
)
"""What should be the same for a speed-up to mean something; the model file and the engine are often what is being compared."""

_AFTER_ENGINE = ("post", "report")


def make_report(measured: Benchmark, *, baseline: Report | None = None, now: datetime.datetime | None = None) -> Report:
    """Returns the content of report.json; `baseline` is that of an earlier benchmark to set this one against."""
    typical = measured.rounds[measured.typical]
    engine = measured.engine_rounds[middle([one.images_per_s for one in measured.engine_rounds])]
    report: Report = {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "created_at": (now or datetime.datetime.now(datetime.UTC)).isoformat(timespec="seconds"),
        "headline": {
            "images_per_s": typical.images / typical.wall_s,
            "images": typical.images,
            "failed": typical.failed,
            "wall_s": typical.wall_s,
            "engine_images_per_s": engine.images_per_s,
            "engine_images": engine.images,
            "engine_seconds": engine.seconds,
            "share_of_engine": typical.images / typical.wall_s / engine.images_per_s,
        },
        "spread": {
            "images_per_s": spread([one.images_per_s for one in measured.rounds]),
            "engine_images_per_s": spread([one.images_per_s for one in measured.engine_rounds]),
            "stages_ms": _spread_stages(measured),
        },
        "time_of_image": _time_of_image(measured),
        "model_lanes": _model_lanes(measured),
        "network": _describe_network(measured),
    }
    report = {**report, **plain_from_record(measured), **report}  # the kind first, where files are told apart
    return {**report, "baseline": _compare(report, baseline)}


def read_report(path: Path) -> Report:
    """Reads a report.json.

    Raises:
        DataError: it is absent, damaged, of another format version, or no benchmark report.
    """
    report = read_json_object(path, format_version=FORMAT_VERSION)
    if report.get("kind") != KIND:
        raise DataError(f"{path}: expected a report.json of `roiline benchmark`, got {report.get('kind')!r}")
    try:
        _check_report(report)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: damaged: not a report as `roiline benchmark` writes it ({error!r:.200})") from error
    return report


def _check_report(report: Report) -> None:
    """Looks at what others read of a report: the headline, the subject, the machine and the spreads."""
    for name in ("images_per_s", "engine_images_per_s"):
        if _number(report["headline"][name]) <= 0:
            raise ValueError(f"headline.{name} is not above 0")
    for text in (report["created_at"], report["subject"]["model"]):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.80} is no text")
    if not isinstance(report["machine"], dict):
        raise TypeError(f"machine is {report['machine']!r:.80}")
    spreads = [report["spread"]["images_per_s"], report["spread"]["engine_images_per_s"]]
    spreads += [one for group in report["spread"]["stages_ms"].values() for one in group.values()]
    for one in spreads:
        for number in (one["median"], one["least"], one["most"], *one["rounds"]):
            _number(number)


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{value!r:.80} is no finite number")
    return float(value)


def _compare(report: Report, baseline: Report | None) -> Report | None:
    """Returns the speed-ups over a baseline, and the names of what was not the same when it was measured."""
    if baseline is None:
        return None
    head, before = report["headline"], baseline["headline"]
    pairs = [(report[place][name], baseline[place].get(name), name) for place, name in _ALIKE]
    return {
        "images_per_s": before["images_per_s"],
        "engine_images_per_s": before["engine_images_per_s"],
        "speed_up": head["images_per_s"] / before["images_per_s"],
        "engine_speed_up": head["engine_images_per_s"] / before["engine_images_per_s"],
        "created_at": baseline["created_at"],
        "model": baseline["subject"]["model"],
        "not_alike": [name for now, then, name in pairs if now != then],
    }


def _spread_stages(measured: Benchmark) -> dict[str, dict[str, Any]]:
    """Returns lane group -> stage -> spread over the rounds of milliseconds a picture."""
    groups = sorted({group for one in measured.rounds for group in one.stages_ms})
    table: dict[str, dict[str, Any]] = {}
    for group in groups:
        stages = sorted({stage for one in measured.rounds for stage in one.stages_ms.get(group, {})})
        table[group] = {
            stage: spread([one.stages_ms.get(group, {}).get(stage, 0.0) for one in measured.rounds]) for stage in stages
        }
    return table


def _time_of_image(measured: Benchmark) -> list[dict[str, Any]]:
    """Returns, for each kind of lane, how its wall time divides among stages, in milliseconds a picture of the typical round."""
    typical = measured.rounds[measured.typical]
    scale = 1000 / max(1, typical.images)
    rows = []
    for group, title in (("main", "Model"), ("readers", "Readers"), ("writer", "Writer")):
        accounts = [account for account in measured.lanes if lane_group(account.lane) == group]
        if not accounts:
            continue
        stages = typical.stages_ms.get(group, {})
        segments = _model_segments(stages, measured) if group == "main" else _plain_segments(stages)
        total = scale * typical.wall_s * len(accounts)
        used = math.fsum(segment["ms"] for segment in segments)
        segments.append({"stage": "other" if group == "main" else "idle", "ms": max(0.0, total - used)})
        rows.append({"lanes": group, "title": title, "count": len(accounts), "total_ms": total, "segments": segments})
    return rows


def _plain_segments(stages: Mapping[str, float]) -> list[dict[str, Any]]:
    order = ("read", "decode", "prepare", "write")
    return [{"stage": stage, "ms": stages[stage]} for stage in order if stage in stages]


def _model_segments(stages: Mapping[str, float], measured: Benchmark) -> list[dict[str, Any]]:
    """Returns the main lane's stages; the time in the engine is divided as the engine's profiler divided it in its own pass."""
    segments = [{"stage": "waiting", "ms": math.fsum(stages.get(wait, 0.0) for wait in WAITS)}]
    segments.append({"stage": "copy", "ms": stages.get("stack", 0.0)})
    infer = math.fsum(stages.get(stage, 0.0) for stage in ENGINE_STAGES)
    profiled = 0.0 if measured.network is None else math.fsum(part.seconds for part in measured.network.parts.values())
    if measured.network is None or profiled <= 0:
        segments.append({"stage": "network", "ms": infer})
    else:
        parts = measured.network.parts
        segments += [{"stage": part, "ms": infer * parts[part].seconds / profiled} for part in PARTS]
    segments += [{"stage": stage, "ms": stages.get(stage, 0.0)} for stage in _AFTER_ENGINE]
    return segments


def _model_lanes(measured: Benchmark) -> list[dict[str, Any]]:
    """Returns each worker's main lane with the shares of its wall time."""
    return [
        {
            "worker": account.worker,
            "device": account.device,
            "wall_s": account.wall_s,
            "busy_s": account.busy_s,
            "wait_s": account.wait_s,
            "after_s": measured.rounds[measured.typical].wall_s - account.wall_s,
            "engine_share": math.fsum(account.stages.get(stage, 0.0) for stage in ENGINE_STAGES) / account.wall_s,
            "wait_share": account.wait_s / account.wall_s,
            "picture_share": account.stages.get("wait_picture", 0.0) / account.wall_s,
            "end_share": account.stages.get("wait_end", 0.0) / account.wall_s,
            "accounted_share": (account.busy_s + account.wait_s) / account.wall_s,
        }
        for account in measured.lanes
        if lane_group(account.lane) == "main"
    ]


def _describe_network(measured: Benchmark) -> Report | None:
    """Returns time, operations and bytes a picture of each part, what it reached, and what the machine's ceilings allow it."""
    if measured.network is None:
        return None
    parts = []
    for name in PARTS:
        cost = measured.network.parts[name]
        entry: Report = {
            "part": name,
            "ms": 1000 * cost.seconds,
            "gflop": cost.operations / 1e9,
            "mb": cost.bytes / 1e6,
            "gflops": _ratio(cost.operations, cost.seconds) / 1e9,
            "gb_per_s": _ratio(cost.bytes, cost.seconds) / 1e9,
            "flop_per_byte": _ratio(cost.operations, cost.bytes),
        }
        if measured.ceilings is not None and cost.operations > 0:
            allowed = min(measured.ceilings.gflops, entry["flop_per_byte"] * measured.ceilings.copy_gb_per_s)
            entry |= {"ceiling_gflops": allowed, "share_of_ceiling": entry["gflops"] / allowed}
        parts.append(entry)
    totals = {key: math.fsum(part[key] for part in parts) for key in ("ms", "gflop", "mb")}
    return {"images": measured.network.images, "parts": parts, "total": totals}


def _ratio(value: float, base: float) -> float:
    return value / base if base > 0 else 0.0


def find(report: Report, path: str) -> Any:
    """Returns the value at a dotted path: names of objects, numbers of lists."""
    value: Any = report
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, Sequence) and not isinstance(value, str) else value[key]
    return value
