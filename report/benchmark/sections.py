"""The sections of a throughput report, one function each: report.json in, HTML out."""

from __future__ import annotations

from collections.abc import Callable

from roiline.report.benchmark.charts import draw_device_use, draw_latency, draw_queue, draw_roofline, draw_sweep
from roiline.report.benchmark.document import Report
from roiline.report.benchmark.writing import Numbers, escape, make_facts, make_legend, make_table, round_number

_NAMES = {
    "copy": "copy into batches",
    "trunk": "trunk",
    "proposals": "proposals",
    "heads": "heads",
    "network": "network",
    "post": "post-processing",
    "report": "report to the parent",
    "waiting": "waiting",
    "other": "not measured",
    "idle": "idle",
}
_ALONE_LANES = {
    "read": "readers",
    "decode": "readers",
    "prepare": "readers",
    "stack": "main",
    "infer": "main",
    "post": "main",
    "write": "writer",
}
_PERCENTILES = ("p50_ms", "p90_ms", "p99_ms", "max_ms", "mean_ms")


def show_time_of_image(n: Numbers) -> str:
    """Returns where the time of an image goes: a bar for each kind of lane, all of one scale of their own wall time."""
    rows = n.report["time_of_image"]
    bars, table, seen = [], [], []
    for index, row in enumerate(rows):
        path = f"time_of_image.{index}"
        pieces = []
        for place, segment in enumerate(row["segments"]):
            stage, share = segment["stage"], segment["ms"] / row["total_ms"] if row["total_ms"] else 0.0
            name = _NAMES.get(stage, stage)
            pieces.append(
                f'<i class="fill-{stage}" style="width:{100 * share:.3f}%" '
                f'title="{escape(name)}: {segment["ms"]:.2f} ms, {100 * share:.1f} %"></i>'
            )
            seen.append(stage)
            swatch = f'<span class="legend" style="display:inline;margin:0"><b class="fill-{stage}"></b></span>{escape(name)}'
            table.append(
                (row["title"], swatch, n.number(f"{path}.segments.{place}.ms", 2), f"{100 * share:.1f} %"),
            )
        lanes = f"{row['count']} {'lane' if row['count'] == 1 else 'lanes'}"
        bars.append(
            f'<div class="lane"><div>{row["title"]}<span class="of">{lanes}</span></div>'
            f'<div class="stack">{"".join(pieces)}</div>'
            f'<div class="sum">{n.number(f"{path}.total_ms", 1)} ms</div></div>'
        )
    legend = make_legend((stage, _NAMES.get(stage, stage)) for stage in dict.fromkeys(seen))
    return (
        f"<p>Milliseconds of lane time for each image. {_how_lanes_work(n.report)}</p>{''.join(bars)}{legend}{_source_of_parts(n.report)}"
        f"<details><summary>The numbers</summary>{make_table(('Lane', 'Stage', 'ms/image', 'Share'), table, text_columns=(1,))}</details>"
    )


def _how_lanes_work(report: Report) -> str:
    if report["subject"]["readers"]:
        return (
            "The lanes work side by side: a run is as fast as its fullest lane, and what the others idle costs nothing."
        )
    return (
        "A worker with one core has no readers: its model lane reads each picture itself when it comes to it, which is its waiting here "
        "and the Readers' work. Only the writer works beside it."
    )


def _source_of_parts(report: Report) -> str:
    if report["network"] is None:
        return '<p class="soft">This engine has no profile of its parts here: the network is one piece.</p>'
    return (
        "<p class=\"soft\">How the network's time divides among trunk, proposals and heads was measured by the engine's own profiler in "
        "a separate pass, not in this run; the sum is this run's.</p>"
    )


def show_latency(n: Numbers) -> str:
    """Returns the distributions of times, one chosen by buttons, and the table of percentiles."""
    if n.report["latencies"] is None:
        return "<p>No picture has a result.</p>"
    kinds = (("in_pipeline", "In the pipeline"), ("service", "Work only"))
    buttons, panels = [], []
    for index, (key, title) in enumerate(kinds):
        chosen = "true" if index == 0 else "false"
        buttons.append(f'<button type="button" data-shows="latency-{key}" aria-pressed="{chosen}">{title}</button>')
        hidden = "" if index == 0 else " hidden"
        panels.append(f'<div id="latency-{key}"{hidden}>{draw_latency(n.report["latencies"][key])}</div>')
    rows = [(title, *(n.number(f"latencies.{key}.stats.{name}", 1) for name in _PERCENTILES)) for key, title in kinds]
    heads = ("Milliseconds", *(name.removesuffix("_ms") for name in _PERCENTILES))
    queues = "Nothing is read ahead here, so hardly a picture waits."
    if n.report["subject"]["readers"]:
        queues = (
            "A pipeline that reads ahead makes pictures wait on purpose, so that the model never does; what is left without the queues "
            "is the work."
        )
    return (
        f"<p>From the start of reading a picture to its result. {queues} Pictures that share an engine call each have the time of the "
        "whole call.</p>"
        f'<div class="choice">{"".join(buttons)}</div>{"".join(panels)}{make_table(heads, rows)}'
    )


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def show_timeline(n: Numbers) -> str:
    """Returns device use and queue fill over the run."""
    ahead = f"At most {n.number('subject.read_ahead', 0)} pictures a worker are on their way to the model."
    if not n.report["subject"]["readers"]:
        ahead = "No picture is prepared before the model comes to it."
    return (
        f"<p>The typical round from its first order to its last result. {ahead}</p>"
        f"{draw_device_use(n.report)}{draw_queue(n.report)}{_show_gpus(n)}"
    )


def _show_gpus(n: Numbers) -> str:
    """Returns what the driver says of the GPUs in the typical round; nothing of a run without any."""
    typical = n.report["typical"]
    rows = []
    for index, gpu in enumerate(n.report["rounds"][typical]["gpus"]):
        path = f"rounds.{typical}.gpus.{index}"
        rows.append(
            (
                escape(f"{gpu['device']} ({gpu['name']})"),
                n.number(f"{path}.use_percent.mean", 0) if gpu["use_percent"]["count"] else "-",
                n.number(f"{path}.memory_mib.max", 0) if gpu["memory_mib"]["count"] else "-",
                n.number(f"{path}.memory_mib.total", 0),
            )
        )
    if not rows:
        return ""
    return make_table(("By the driver", "Use %", "Most MiB taken", "MiB in all"), rows)


def show_stages_alone(n: Numbers) -> str:
    """Returns each stage alone beside what it took in the run."""
    names = {**_NAMES, "stack": _NAMES["copy"], "infer": "engine"}
    rows = []
    for stage, group in _ALONE_LANES.items():
        inside = n.report["spread"]["stages_ms"].get(group, {})
        run = n.number(f"spread.stages_ms.{group}.{stage}.median", 3) if stage in inside else "-"
        path = f"stages_alone.{stage}"
        spread = f"{n.number(f'{path}.least_ms', 3)} to {n.number(f'{path}.most_ms', 3)}"
        rows.append((names.get(stage, stage), n.number(f"{path}.median_ms", 3), spread, run))
    return (
        "<p>Each stage alone on one thread (the engine with its own threads), over the same pictures, nothing else running; beside it what "
        "it took in the run, where the lanes share the cores. Medians of the rounds.</p>"
        + make_table(("ms/image", "Alone", "Spread", "In the run"), rows)
    )


def show_roofline(n: Numbers) -> str:
    """Returns the network's parts against the machine's ceilings."""
    if n.report["network"] is None:
        return (
            "<p>Not measured: parts are counted from an ONNX file and timed by the engine's own profiler on the CPU, and this engine or "
            "device has no such profile.</p>"
        )
    rows = []
    for index, part in enumerate(n.report["network"]["parts"]):
        path = f"network.parts.{index}"
        known = "ceiling_gflops" in part
        rows.append(
            (
                escape(part["part"]),
                n.number(f"{path}.ms", 1),
                n.number(f"{path}.gflop", 2),
                n.number(f"{path}.mb", 1),
                n.number(f"{path}.gflops", 1),
                n.number(f"{path}.ceiling_gflops", 1) if known else "-",
                n.percent(f"{path}.share_of_ceiling") if known else "-",
            )
        )
    total = (
        "all",
        n.number("network.total.ms", 1),
        n.number("network.total.gflop", 2),
        n.number("network.total.mb", 1),
        "",
        "",
        "",
    )
    heads = ("A picture", "ms", "GFLOP", "MB moved", "GFLOP/s", "Ceiling", "Reached")
    chart = draw_roofline(n.report) if n.report["ceilings"] is not None else ""
    return (
        "<p>Operations and bytes are counted from the graph with the shapes of the actual input: a multiplication and an addition are two "
        "operations, bytes are those of every matrix layer's inputs, weights and outputs, once each. Times are from the engine's own "
        "profiler in a separate pass, and are those of the whole part, with NMS and sampling, which are no matrix products.</p>"
        f"{chart}{make_table(heads, [*rows, total])}"
        f"{_describe_ceilings(n)}"
    )


def _describe_ceilings(n: Numbers) -> str:
    ceilings = n.report["ceilings"]
    if ceilings is None:
        return '<p class="soft">What the device can reach at most was not measured.</p>'
    threads = f"{n.number('ceilings.threads', 0)} {'thread' if ceilings['threads'] == 1 else 'threads'}"
    return (
        f'<p class="soft">The ceilings, {n.number("ceilings.gflops")} GFLOP/s and {n.number("ceilings.copy_gb_per_s")} GB/s, were '
        f"measured here with {threads}: the best of several products of float32 matrices and of several memory copies (bytes read and "
        "written). On a busy machine they are low, and so is everything else.</p>"
    )


def show_sweep(n: Numbers) -> str:
    """Returns the rates over workers and batch sizes."""
    if not n.report["sweep"]:
        return "<p>Not measured; <code>--sweep</code> tries other numbers of workers and other batch sizes.</p>"
    subject = n.report["subject"]
    workers = len(subject["devices"])
    legend = make_legend((("accent", "end to end"), ("second", "engine alone")))
    rows = [
        (
            n.number(f"sweep.{index}.workers", 0),
            n.number(f"sweep.{index}.batch_size", 0),
            n.number(f"sweep.{index}.images_per_s", 2),
            n.number(f"sweep.{index}.engine_images_per_s", 2),
        )
        for index in range(len(n.report["sweep"]))
    ]
    parts = [f"<p>One round each.</p>{legend}"]
    if any(point["workers"] != workers for point in n.report["sweep"]):
        parts.append(f"<h3>Workers (batch size {subject['batch_size']})</h3>{draw_sweep(n.report, 'workers')}")
    parts.append(
        f"<h3>Batch sizes ({workers} {'worker' if workers == 1 else 'workers'})</h3>{draw_sweep(n.report, 'batch_size')}"
    )
    return "".join(parts) + make_table(("Workers", "Batch size", "images/s", "engine alone"), rows)


def show_rounds(n: Numbers) -> str:
    """Returns the rounds, and the accounts of the model lanes."""
    rounds = [
        (
            f"{index + 1}{' (typical)' if index == n.report['typical'] else ''}",
            n.number(f"rounds.{index}.images", 0),
            n.number(f"rounds.{index}.wall_s", 2),
            n.number(f"rounds.{index}.images_per_s", 2),
            n.number(f"rounds.{index}.phases.open_s", 2),
            n.number(f"rounds.{index}.phases.merge_s", 2),
        )
        for index in range(len(n.report["rounds"]))
    ]
    lanes = [
        (
            f"worker {lane['worker']} ({escape(lane['device'])})",
            n.number(f"model_lanes.{index}.wall_s", 2),
            n.number(f"model_lanes.{index}.busy_s", 2),
            n.number(f"model_lanes.{index}.wait_s", 2),
            n.number(f"model_lanes.{index}.after_s", 2),
            n.percent(f"model_lanes.{index}.accounted_share", 1),
        )
        for index, lane in enumerate(n.report["model_lanes"])
    ]
    return (
        make_table(("Round", "Images", "Wall s", "images/s", "Open s", "Merge s"), rounds)
        + "<h3>Do the numbers add up?</h3><p>Busy and waiting time of each worker's model lane against the "
        "worker's own wall time, from the first order to its last word. After that the run still waits for other workers and "
        "checks the shards: that is in the rate too.</p>"
        + make_table(("Model lane", "Wall s", "Busy s", "Waiting s", "After s", "Accounted"), lanes)
    )


def show_environment(n: Numbers) -> str:
    """Returns what was measured, and on what."""
    subject, machine = n.report["subject"], n.report["machine"]
    shapes = ", ".join(
        f"{shape.replace('x', ' × ')}: {count}" for shape, count in list(subject["network_shapes"].items())[:8]
    )
    more = len(subject["network_shapes"]) - 8
    engine = ", ".join(f"{key} {value}" for key, value in subject["engine"].items())
    load = " ".join(round_number(value, 2) for value in machine["load_at_start"])
    return make_facts(
        [
            (
                "Model",
                f"{escape(subject['model'])} ({escape(subject['architecture'])}, {subject['precision']}, {subject['task']})",
            ),
            ("SHA-256", f"<code>{subject['model_sha256'][:16]}…</code>"),
            ("Engine", escape(engine)),
            ("Data", f"{escape(', '.join(subject['data']))}, {n.number('subject.images', 0)} images"),
            ("Network input", f"{shapes}{f', and {more} more shapes' if more > 0 else ''} (height × width: images)"),
            (
                "Workers",
                f"{len(subject['devices'])} ({escape(', '.join(subject['devices']))}), {_count(subject['threads'], 'thread')} "
                f"and {_count(subject['readers'], 'reader')} each",
            ),
            ("Batch", f"{subject['batch_size']}, {subject['batch_mode']}"),
            (
                "Processor",
                f"{escape(machine['processor'])}, {machine['usable_cores']} of {machine['cores']} cores usable",
            ),
            ("Memory", f"{n.number('machine.memory_gib', 1)} GiB"),
            ("System", escape(machine["system"])),
            ("Load at start", f"{load} (1, 5, 15 minutes)"),
            ("Python", escape(machine["python"])),
            ("Versions", escape(", ".join(f"{name} {version}" for name, version in machine["versions"].items()))),
        ]
    )


SECTIONS: tuple[tuple[str, str, Callable[[Numbers], str]], ...] = (
    ("time", "Where the time of an image goes", show_time_of_image),
    ("latency", "How long a picture takes", show_latency),
    ("timeline", "Over the run", show_timeline),
    ("stages", "Each stage alone", show_stages_alone),
    ("roofline", "The network against the machine", show_roofline),
    ("sweep", "Scaling", show_sweep),
    ("rounds", "Rounds and accounts", show_rounds),
    ("environment", "What was measured, and on what", show_environment),
)
