"""The text of an evaluation: tables for people, and the lines that users of Detectron know: its log's, and those to copy and paste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roiline.report.detection_metrics import DetectionMetrics, Scored
from roiline.report.proposal_recall import RecallMetrics
from roiline.report.voc_metrics import VocMetrics

COPY_PASTE_PREFIX = "copypaste: "
_MEASURES: Mapping[Scored, str] = {
    "box": "box AP, IoU .50:.95, at most 100 detections a picture, x 100",
    "mask": "mask AP, IoU .50:.95, at most 100 detections a picture, x 100",
    "keypoint": "keypoint AP, OKS .50:.95, at most 20 detections a picture, x 100",
}
_VOC_RULES = {"area": "AP50, area under the curve (2010 on)", "11point": "AP50, eleven points (2007)"}
_AREA_NAMES = {"": "all", "s": "small", "m": "medium", "l": "large"}
_KEYPOINT_LIMIT = 20


def format_detection_table(
    title: str, metrics: DetectionMetrics, part: Scored = "box", *, per_class: bool = False
) -> str:
    """Returns the table of detection metrics: 100 * AP with one decimal, `-` where there is no ground truth.

    With `per_class` every class has a row with all metrics and the number of its objects.
    """
    rows = [(name, _percent(value)) for name, value in metrics.overall.items()]
    heading = f"{title}: {_MEASURES[part]}"
    if not per_class:
        return _join(
            heading, [*rows, *((f"AP of {name}", _percent(value)) for name, value in metrics.per_class.items())]
        )
    names = [*metrics.overall, "AR"]
    table = [("class", "objects", *names)]
    for name, measured in metrics.classes.items():
        table.append((name, str(metrics.objects[name]), *(_percent(measured[key]) for key in names)))
    return "\n".join([_join(heading, rows), "", *_align(table)])


def format_voc_table(title: str, metrics: VocMetrics) -> str:
    """Returns the table of VOC metrics, a row a class under that of the mean: 100 * AP with one decimal."""
    table = [("", *_VOC_RULES.values()), ("mean", *(_percent(metrics.overall[rule]) for rule in _VOC_RULES))]
    table += [(name, *(_percent(one[rule]) for rule in _VOC_RULES)) for name, one in metrics.per_class.items()]
    return "\n".join([f"{title}: Pascal VOC's average precision of boxes, x 100", *_align(table)])


def format_recall_table(title: str, recalls: Mapping[str, float]) -> str:
    """Returns the table of average recalls with three decimals, `-` where there is no ground truth."""
    return _join(
        f"{title}: average recall of proposals, IoU .50:.95",
        [(key, _fraction(value)) for key, value in recalls.items()],
    )


def format_class_recalls(recalls: RecallMetrics, class_names: Sequence[str]) -> str:
    """Returns the table of average recalls of each class, and of the mean in which every class weighs the same."""
    keys = list(recalls.overall)
    table = [("recall of", *keys)]
    table += [
        (class_names[label - 1], *(_fraction(measured[key]) for key in keys))
        for label, measured in recalls.per_class.items()
    ]
    return "\n".join(_align([*table, ("mean of classes", *(_fraction(recalls.class_mean[key]) for key in keys))]))


def format_copy_paste(dataset: str, task: str, metrics: Mapping[str, float]) -> str:
    """Returns the four copy-paste lines of one task: dataset, task, metric names, values with four decimals."""
    lines = (
        f"Dataset: {dataset}",
        f"Task: {task}",
        ",".join(metrics),
        ",".join(f"{value:.4f}" for value in metrics.values()),
    )
    return "\n".join(COPY_PASTE_PREFIX + line for line in lines)


def format_detection_log(metrics: DetectionMetrics, part: Scored, class_names: Sequence[str]) -> str:
    """Returns what Detectron logs of an evaluation: the mean AP, that of each class, and the summary of COCO's tools below.

    Classes have no names there and come by ascending category id, whatever the dataset's order is: so are `class_names`.
    """
    lines = ["~~~~ Mean and per-category AP @ IoU=[0.50,0.95] ~~~~", _log_percent(metrics.overall["AP"])]
    lines += [_log_percent(metrics.per_class[name]) for name in class_names]
    return "\n".join([*lines, "~~~~ Summary metrics ~~~~", *_summary_lines(metrics, part)])


def format_recall_log(dataset: str, recalls: Mapping[str, float]) -> str:
    """Returns what Detectron logs of proposals' recall: the dataset's name, then a line a recall."""
    return "\n".join([dataset, *(f"{key:<8}: {value:.3f}" for key, value in recalls.items())])


def _summary_lines(metrics: DetectionMetrics, part: Scored) -> list[str]:
    """Returns the lines of COCO's summary: precision, then recall."""
    lines = []
    for kind, short, measured in (("Precision", "AP", metrics.overall), ("Recall", "AR", metrics.recall)):
        for name, value in measured.items():
            ending = name.removeprefix(short)
            iou = f"0.{ending}" if ending in ("50", "75") else "0.50:0.95"
            most = ending[1:] if ending.startswith("@") else str(_KEYPOINT_LIMIT if part == "keypoint" else 100)
            area = _AREA_NAMES.get(ending, "all")
            lines.append(
                f" {'Average ' + kind:<18} ({short}) @[ IoU={iou:<9} | area={area:>6} | maxDets={most:>3} ] = {value:.3f}"
            )
    return lines


def _log_percent(value: float) -> str:
    return f"{100 * value:.1f}" if value >= 0 else "nan"


def format_difference(heading: str, a: Mapping[str, float], b: Mapping[str, float], *, scale: float = 100.0) -> str:
    """Returns the table of the metrics of two runs: A, B, and B - A, times `scale`; `-` where there is no ground truth."""
    decimals = 1 if scale > 1 else 3
    table: list[tuple[str, ...]] = [("", "A", "B", "B - A")]
    for name, value in a.items():
        other = b.get(name, -1.0)
        known = value >= 0 and other >= 0
        cells = [f"{scale * one:.{decimals}f}" if one >= 0 else "-" for one in (value, other)]
        table.append((name, *cells, f"{scale * (other - value):+.{decimals}f}" if known else "-"))
    return "\n".join([heading, *_align(table)])


def format_columns(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines of columns, the first one set left, the others right."""
    return "\n".join(_align(rows))


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _join(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    names = max(len(name) for name, _ in rows)
    values = max(len(value) for _, value in rows)
    return "\n".join([heading, *(f"  {name:<{names}}  {value:>{values}}" for name, value in rows)])


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if value >= 0 else "-"


def _fraction(value: float) -> str:
    return f"{value:.3f}" if value >= 0 else "-"
