"""The text of an evaluation: a title, one row a class or recall, and the copy-paste lines that spreadsheets of Detectron's users expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roiline.report.detection_metrics import DetectionMetrics, Scored

COPY_PASTE_PREFIX = "copypaste: "
_MEASURES: Mapping[Scored, str] = {
    "box": "box AP, IoU .50:.95, at most 100 detections a picture, x 100",
    "mask": "mask AP, IoU .50:.95, at most 100 detections a picture, x 100",
    "keypoint": "keypoint AP, OKS .50:.95, at most 20 detections a picture, x 100",
}


def format_detection_table(title: str, metrics: DetectionMetrics, part: Scored = "box") -> str:
    """Returns the table of detection metrics: 100 * AP with one decimal, `-` where there is no ground truth."""
    rows = [(name, _percent(value)) for name, value in metrics.overall.items()]
    rows += [(f"AP of {name}", _percent(value)) for name, value in metrics.per_class.items()]
    return _join(f"{title}: {_MEASURES[part]}", rows)


def format_recall_table(title: str, recalls: Mapping[str, float]) -> str:
    """Returns the table of average recalls with three decimals, `-` where there is no ground truth."""
    return _join(
        f"{title}: average recall of proposals, IoU .50:.95",
        [(key, _fraction(value)) for key, value in recalls.items()],
    )


def format_copy_paste(dataset: str, task: str, metrics: Mapping[str, float]) -> str:
    """Returns the four copy-paste lines of one task: dataset, task, metric names, values with four decimals."""
    lines = (
        f"Dataset: {dataset}",
        f"Task: {task}",
        ",".join(metrics),
        ",".join(f"{value:.4f}" for value in metrics.values()),
    )
    return "\n".join(COPY_PASTE_PREFIX + line for line in lines)


def _join(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    names = max(len(name) for name, _ in rows)
    values = max(len(value) for _, value in rows)
    return "\n".join([heading, *(f"  {name:<{names}}  {value:>{values}}" for name, value in rows)])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if value >= 0 else "-"


def _fraction(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else "-"
