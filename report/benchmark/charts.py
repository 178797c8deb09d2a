"""The charts of a throughput report, each from report.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roiline.report.benchmark.document import Report
from roiline.report.benchmark.figures import NARROW, WIDE, Axis, Figure, draw_both, plain_number


def draw_latency(distribution: dict[str, Any]) -> str:
    """Returns the histogram of a distribution of times with its percentiles marked."""
    counts, low, high = distribution["counts"], distribution["low_ms"], distribution["high_ms"]
    step = (high - low) / len(counts)
    stats = distribution["stats"]

    def draw(width: int) -> Figure:
        margin = 0.02 * (high - low)
        x = Axis(low - margin, high + margin, "milliseconds", label=plain_number)
        y = Axis(0, max(*counts, 1), "pictures", ticks=_whole_ticks(max(counts)))
        figure = Figure("How long pictures take: number of pictures by milliseconds", x, y, width=width)
        figure.top, figure.height = 68, 290
        for index, count in enumerate(counts):
            start = low + index * step
            tip = f"{start:.1f} to {start + step:.1f} ms: {count} pictures"
            if count:
                figure.bar(start, start + step, count, "fill-accent", tip)
        for row, name in enumerate(("p50", "p90", "p99")):
            figure.upright(stats[f"{name}_ms"], f"{name} {stats[f'{name}_ms']:,.1f} ms", row=row - 3)
        return figure

    return draw_both(draw)


def _whole_ticks(most: int) -> tuple[float, ...]:
    """Returns a few whole numbers from 0 to `most`."""
    step = next(factor * 10**power for power in range(12) for factor in (1, 2, 5) if 4 * factor * 10**power >= most)
    return tuple(range(0, most + 1, step))


def draw_device_use(report: Report) -> str:
    """Returns the share of the time that was spent inside the engine, over the run."""
    timeline = report["timeline"]
    return _draw_over_time(
        timeline["device_use"],
        timeline["bin_s"],
        Axis(0, 100, "inside the engine, % of the model lanes' time"),
        scale=100,
        style="accent",
        title="Device use over the run in percent",
    )


def draw_queue(report: Report) -> str:
    """Returns how many prepared pictures waited for the model, over the run."""
    timeline = report["timeline"]
    most = max(1.0, *timeline["queue"])
    return _draw_over_time(
        timeline["queue"],
        timeline["bin_s"],
        Axis(0, 1.1 * most, "pictures prepared and waiting, all workers"),
        scale=1,
        style="second",
        title="Prepared pictures waiting over the run",
    )


def _draw_over_time(values: Sequence[float], bin_s: float, y: Axis, *, scale: float, style: str, title: str) -> str:
    steps = [
        (edge * bin_s, min(y.high, scale * value)) for index, value in enumerate(values) for edge in (index, index + 1)
    ]

    def draw(width: int) -> Figure:
        figure = Figure(title, Axis(0, len(values) * bin_s, "seconds"), y, width=width, height=190)
        figure.area(steps, style)
        figure.line(steps, style)
        return figure

    return draw_both(draw)


def draw_roofline(report: Report) -> str:
    """Returns the roofline: what the machine allows at each intensity, and what each part of the network reached."""
    peak, bandwidth = report["ceilings"]["gflops"], report["ceilings"]["copy_gb_per_s"]
    parts = [part for part in report["network"]["parts"] if "ceiling_gflops" in part]
    ridge = peak / bandwidth
    xs = [part["flop_per_byte"] for part in parts] + [ridge]
    ys = [part["gflops"] for part in parts]
    low, high = min(xs) / 3, max(xs) * 4
    bottom, top = min([*ys, bandwidth * low]) / 2, max([*ys, peak]) * 1.6

    def draw(width: int) -> Figure:
        x = Axis(low, high, "operations per byte (intensity)", logarithmic=True)
        y = Axis(bottom, top, "GFLOP/s", logarithmic=True)
        figure = Figure("Roofline of the network's parts", x, y, width=width, height=300)
        figure.line(
            [(max(low, bottom / bandwidth), bandwidth * max(low, bottom / bandwidth)), (ridge, peak), (high, peak)],
            "roof",
        )
        figure.note(high, peak, f"matrix product {peak:.0f} GFLOP/s", anchor="end", shift=(0, -7))
        if width == WIDE:
            start = max(low, bottom / bandwidth) * 1.15
            figure.note(start, bandwidth * start, f"memory copy {bandwidth:.0f} GB/s", shift=(10, 14))
        for index, part in enumerate(sorted(parts, key=lambda part: -part["gflops"])):
            tip = f"{part['part']}: {part['gflops']:.1f} GFLOP/s at {part['flop_per_byte']:.1f} operations per byte"
            figure.dot(part["flop_per_byte"], part["gflops"], f"fill-{part['part']}", tip)
            left = part["flop_per_byte"] > (low * high) ** 0.5 and width == NARROW
            figure.note(
                part["flop_per_byte"],
                part["gflops"],
                part["part"],
                anchor="end" if left else "start",
                shift=(-9 if left else 9, 4 if index == 0 else 5),
            )
        return figure

    return draw_both(draw)


def draw_sweep(report: Report, by: str) -> str:
    """Returns the rates by number of `workers` or by `batch_size`, end to end and of the engines alone."""
    subject = report["subject"]
    other = {"workers": "batch_size", "batch_size": "workers"}[by]
    fixed = {"workers": len(subject["devices"]), "batch_size": subject["batch_size"]}[other]
    points = sorted((point for point in report["sweep"] if point[other] == fixed), key=lambda point: point[by])
    values = [point[by] for point in points]
    most = max(max(point["images_per_s"], point["engine_images_per_s"]) for point in points)
    title = {"workers": "workers", "batch_size": "pictures an engine call"}[by]

    def draw(width: int) -> Figure:
        low, high = (values[0] / 1.3, values[-1] * 1.3) if len(values) > 1 else (values[0] / 2, values[0] * 2)
        x = Axis(low, high, title, logarithmic=True, ticks=tuple(map(float, values)))
        figure = Figure(f"Images per second by {title}", x, Axis(0, 1.15 * most, "images/s"), width=width, height=230)
        for key, style in (("engine_images_per_s", "second"), ("images_per_s", "accent")):
            figure.line([(point[by], point[key]) for point in points], style)
            for point in points:
                figure.dot(point[by], point[key], f"fill-{style}", f"{point[by]} {title}: {point[key]:.2f} images/s")
        return figure

    return draw_both(draw)
