"""The command line: parse, call, print. What a command does lives in the rooms; here are its options and its messages."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from roiline import __version__
from roiline.core.errors import EXIT_BUG, EXIT_DONE, EXIT_ENGINE, EXIT_INPUT, EXIT_INTERRUPTED, RoilineError, UsageError
from roiline.core.files import check_output, read_input

LOG = logging.getLogger("roiline")
F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(
    path_type=Path, readable=False
)  # what opens a file says why it cannot, with the exit code of its kind
MESSAGE_LIMIT = 16_000
_NAMES_LIMIT = 1 << 24
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class LoggedCommand(click.Command):
    """Is a command with the options that all have, and with errors shown as one message and an exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["-v", "--verbose"], is_flag=True, help="Say more."),
            click.Option(["-q", "--quiet"], is_flag=True, help="Say only warnings and errors."),
            click.Option(["--log-file"], type=PATH, metavar="FILE", help="Write the log to FILE too."),
            click.Option(["--debug"], is_flag=True, help="Show tracebacks, and say more."),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; ends the process with the exit code of its error, if there is one."""
        options = {name: ctx.params.pop(name) for name in ("verbose", "quiet", "log_file")}
        debug = ctx.params.pop("debug")
        options["verbose"] = options["verbose"] or debug
        try:
            with _interrupted_by_sigterm(), _logging(ctx.params, **options):
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except BrokenPipeError:
            sys.stdout = None  # whoever read our output has gone; nothing is left to say
            ctx.exit(EXIT_DONE)
        except (KeyboardInterrupt, Exception) as error:
            message, code = _explain(error)
            _show(f"{_command_path(ctx)}: {message}", debug=debug)
            ctx.exit(code)


def _command_path(ctx: click.Context) -> str:
    """Returns the command as people write it, "roiline export detectron", whatever the program file is called."""
    if ctx.parent is None:
        return "roiline"
    return f"{_command_path(ctx.parent)} {ctx.command.name}"


def _explain(error: BaseException) -> tuple[str, int]:
    """Returns what to say of an error that ended a command, and the exit code."""
    if isinstance(error, RoilineError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            _give_up_full_output()
            return f"could not go on: {error.strerror}", EXIT_ENGINE
        return f"{error.filename}: {error.strerror}", EXIT_INPUT
    return (
        f"a fault in roiline itself: {type(error).__name__}: {error}\n"
        "  (run again with --debug and report what it shows)",
        EXIT_BUG,
    )


def _give_up_full_output() -> None:
    """Drops what standard output could not take; else Python would try again at its end, and end with a code of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        sys.stdout = None


def _show(message: str, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    if len(message) > MESSAGE_LIMIT:
        message = f"{message[:MESSAGE_LIMIT]}\n  .. and {len(message) - MESSAGE_LIMIT} characters more"
    with contextlib.suppress(OSError):  # a closed or full stderr; the exit code still says it
        click.echo(message, err=True)


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM what Ctrl-C is, so that it leaves no temporary files; only the main thread may, elsewhere it stays as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _LogFile(logging.FileHandler):
    """Is a log file that may run full: that is said once, and is no reason to end the work."""

    _full = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the names are logging's
        """Says why the first record could not be written."""
        if not self._full:
            self._full = True
            _show(f"--log-file {self.baseFilename}: cannot be written ({sys.exc_info()[1]})", debug=False)

    def close(self) -> None:
        """Closes the file; what it could not take is dropped, as was said."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def _logging(given: Mapping[str, Any], *, verbose: bool, quiet: bool, log_file: Path | None) -> Iterator[None]:
    """Sends the log where the options say; `given` are the command's own arguments, none of which may be the log file."""
    LOG.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if log_file is not None:
        _check_log_file(log_file, given)
        try:
            handlers.append(_LogFile(log_file, encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"--log-file {log_file}: cannot be written ({error.strerror})") from error
        handlers[1].setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for handler in handlers:
        LOG.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOG.removeHandler(handler)
            handler.close()


def _check_log_file(log_file: Path, given: Mapping[str, Any]) -> None:
    values = [one for value in given.values() for one in (value if isinstance(value, tuple) else (value,))]
    for value in values:
        given_file = isinstance(value, str | Path) and os.path.isfile(value) and os.path.isfile(log_file)
        if given_file and os.path.samefile(log_file, value):
            raise UsageError(f"--log-file {log_file}: is a file that this command was given; name another")


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="roiline")
def main() -> None:
    """Trained R-CNNs over whole datasets: a checkpoint to proposals and detections, on every device of the machine."""


def _options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


# --- export ----------------------------------------------------------------------------------------------------------


@main.group(context_settings=CONTEXT)
def export() -> None:
    """Make one ONNX file of a checkpoint and its configuration."""


CLASSES_OPTION = click.option(
    "--classes",
    metavar="NAMES",
    help="Class names in class order, without background: NAME,NAME,... or a file with a name a line.",
)
SET_OPTION = click.option(
    "--set",
    "overrides",
    nargs=2,
    multiple=True,
    metavar="KEY VALUE",
    help="Set a configuration key; may be given several times.",
)
OUTPUT_OPTION = click.option(
    "-o", "--output", "out", type=PATH, required=True, metavar="MODEL.onnx", help="The file to write."
)
EXPORT_OPTIONS = _options(
    OUTPUT_OPTION,
    click.option(
        "--task",
        type=click.Choice(["proposals", "detections"]),
        help="What the model is to do; by default all that it can.",
    ),
    CLASSES_OPTION,
    click.option(
        "--tap",
        "taps",
        multiple=True,
        metavar="BLOB",
        help="Make a blob an output too, by its Caffe2 name; may be given several times.",
    ),
)


@export.command("detectron", cls=LoggedCommand)
@click.option("--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The model's configuration.")
@click.option("--weights", type=PATH, required=True, metavar="W.pkl", help="The trained weights.")
@SET_OPTION
@EXPORT_OPTIONS
def export_detectron_command(cfg: Path, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a model of Detectron or of a fork of it, with Detectron's conventions."""
    from roiline.export.detectron.exporter import export_detectron

    options["class_names"] = _name_classes(classes, out)
    _show_export(export_detectron(cfg, weights, out, **options))


@export.command("caffe2", cls=LoggedCommand)
@click.option("--net", type=PATH, required=True, metavar="model.pb", help="The net.")
@click.option("--init", type=PATH, required=True, metavar="model_init.pb", help="The net that fills its weights.")
@click.option("--cfg", type=PATH, metavar="CFG.yaml", help="Means and scale, for runs over datasets.")
@SET_OPTION
@CLASSES_OPTION
@OUTPUT_OPTION
def export_caffe2_command(
    net: Path, init: Path, cfg: Path | None, overrides: Any, classes: str | None, out: Path
) -> None:
    """Export a Caffe2 NetDef pair; inputs and outputs of the model are the net's own, by name."""
    from roiline.export.caffe2.exporter import export_caffe2

    names = _name_classes(classes, out)
    report = export_caffe2(net, init, out, cfg=cfg, overrides=overrides, class_names=names)
    _show_export(report)


@export.command("detectron2", cls=LoggedCommand)
@click.option("--cfg", type=PATH, required=True, metavar="CFG.yaml", help="The model's configuration.")
@click.option("--weights", type=PATH, required=True, metavar="W.pkl|W.pth", help="The trained weights.")
@SET_OPTION
@EXPORT_OPTIONS
def export_detectron2_command(cfg: Path, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a detectron2 model, with detectron2's conventions."""
    from roiline.export.detectron2.exporter import export_detectron2

    options["class_names"] = _name_classes(classes, out)
    _show_export(export_detectron2(cfg, weights, out, **options))


@export.command("torchvision", cls=LoggedCommand)
@click.option("--arch", required=True, metavar="NAME", help="The model's constructor, e.g. fasterrcnn_resnet50_fpn.")
@click.option("--weights", type=PATH, required=True, metavar="W.pth", help="The trained weights, or .safetensors.")
@click.option("--num-classes", type=int, metavar="K", help="Number of classes, background included.")
@click.option("--cfg", type=PATH, metavar="FILE.yaml", help="Arguments of the constructor, by torchvision's own names.")
@EXPORT_OPTIONS
def export_torchvision_command(arch: str, weights: Path, out: Path, classes: str | None, **options: Any) -> None:
    """Export a torchvision detection model, with torchvision's conventions."""
    from roiline.export.torchvision.exporter import export_torchvision

    options["class_names"] = _name_classes(classes, out)
    _show_export(export_torchvision(arch, weights, out, **options))


def _show_export(report: Any) -> None:
    for warning in report.warnings:
        LOG.warning("%s", warning)
    for line in report.leftovers:
        LOG.info("%s", line)
    spec = report.spec
    named = "" if spec.class_names_known else " (no names in the checkpoint: give them with --classes)"
    able = " and ".join(spec.tasks) or "the net's own inputs and outputs"
    click.echo(f"{report.path}: {spec.architecture}, {able}, {len(spec.class_names)} classes{named}")


def _name_classes(classes: str | None, out: Path) -> tuple[str, ...] | None:
    if classes is None:
        return None
    check_output(out, [classes])
    return read_class_names(classes)


def read_class_names(text: str) -> tuple[str, ...]:
    """Returns class names from `NAME,NAME,...` or from a file with a name a line; a background in first place is left out.

    Raises:
        UsageError: a name is empty, or the file cannot be read.
    """
    if os.path.isfile(text):
        try:
            lines = read_input(text, error=UsageError, limit=_NAMES_LIMIT).decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise UsageError(f"--classes {text}: cannot be read as text ({error})") from error
        names = [line.strip() for line in lines if line.strip()]
    else:
        names = [name.strip() for name in text.split(",")]
    if any(
        "\udc80" <= letter <= "\udcff" for name in names for letter in name
    ):  # bytes that the shell's encoding does not have
        raise UsageError(f"--classes: expected text in UTF-8, got {', '.join(names)!a}")
    if names[:1] in (["__background__"], ["background"]):
        names = names[1:]
    if not names or not all(names):
        raise UsageError(f"--classes {text}: expected NAME,NAME,... or a file with a name a line")
    return tuple(names)


# --- runs ------------------------------------------------------------------------------------------------------------

DATA_OPTIONS = _options(
    click.option(
        "--images",
        type=PATH,
        multiple=True,
        metavar="DIR",
        help="Picture folder of a COCO json; pairs with DATA by order.",
    ),
    click.option("--split", multiple=True, metavar="NAME", help="Split of a VOC root; pairs with DATA by order."),
    click.option("--classes", metavar="NAMES", help="Class names of a VOC root where the model has none."),
)

RUN_OPTIONS = _options(
    click.argument("model", type=PATH),
    click.argument("data", nargs=-1, required=True),
    click.option("-o", "--output", "out", type=PATH, required=True, metavar="OUT", help="Folder of the results."),
    DATA_OPTIONS,
    click.option("--gpus", metavar="LIST", help="GPUs to use, one process each: 0-3, 0,2, UUIDs."),
    click.option(
        "--cpu-workers",
        type=int,
        metavar="N",
        help="N processes on the CPU, the cores shared out (default without a GPU: 1).",
    ),
    click.option("--engine", default="auto", show_default=True, metavar="NAME", help="What runs the model."),
    click.option("--batch-size", type=int, default=1, show_default=True, metavar="N", help="Pictures an engine call."),
    click.option(
        "--batch-mode",
        type=click.Choice(["exact", "padded"]),
        default="exact",
        show_default=True,
        help="exact: only pictures of one padded shape share a batch, so batching changes no answer.",
    ),
    click.option(
        "--exif",
        type=click.Choice(["as-source", "apply", "ignore"]),
        default="as-source",
        show_default=True,
        help="Turn pictures upright by their EXIF orientation.",
    ),
    click.option("--scale", type=int, metavar="PIXELS", help="Shorter side of the network's input."),
    click.option("--max-size", type=int, metavar="PIXELS", help="Longest allowed longer side."),
    click.option("--limit", type=int, metavar="N", help="Only the first N pictures."),
    click.option(
        "--range", "id_range", type=int, nargs=2, metavar="START END", help="Pictures START to END - 1 by id order."
    ),
    click.option(
        "--format", "formats", multiple=True, metavar="NAME", help="Result format; may be given several times."
    ),
    click.option("--fresh", is_flag=True, help="Start over instead of going on with what OUT holds."),
    click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
)

THRESHOLD_OPTIONS = _options(
    click.option("--score-thresh", type=float, metavar="S", help="Keep detections that score above S."),
    click.option("--nms", "nms_thresh", type=float, metavar="T", help="Overlap at which NMS suppresses."),
    click.option("--max-dets", type=int, metavar="N", help="Detections a picture at most; 0: all."),
)

PARTNER_OPTIONS = _options(
    click.option(
        "--proposals",
        type=PATH,
        multiple=True,
        metavar="FILE.pkl",
        help="Proposal file, for a model that makes no proposals itself; pairs with DATA by order.",
    ),
    click.option(
        "--proposals-from", type=PATH, metavar="MODEL", help="Model that makes the proposals first, picture by picture."
    ),
    click.option(
        "--with",
        "others",
        type=PATH,
        multiple=True,
        metavar="MODEL",
        help="Another model to combine: its boxes, masks and keypoints take the place of those before; may be given several times.",
    ),
)


@main.command("proposals", cls=LoggedCommand)
@RUN_OPTIONS
def proposals_command(**options: Any) -> None:
    """Make proposals over datasets: a COCO json, a VOC root, a folder, a glob, a text list."""
    _run("proposals", options)


@main.command("detect", cls=LoggedCommand)
@RUN_OPTIONS
@THRESHOLD_OPTIONS
@PARTNER_OPTIONS
def detect_command(**options: Any) -> None:
    """Make detections over datasets: a COCO json, a VOC root, a folder, a glob, a text list, a picture."""
    _run("detections", options)


def _run(task: Any, options: dict[str, Any]) -> None:
    from roiline.infer.python_api import request_from_options
    from roiline.infer.request import RunOverrides
    from roiline.infer.run import run_dataset

    changed = ("score_thresh", "nms_thresh", "max_dets", "scale", "max_size")
    kept = (
        "engine",
        "batch_size",
        "batch_mode",
        "exif",
        "formats",
        "id_range",
        "limit",
        "fresh",
        "gpus",
        "cpu_workers",
    )
    classes = options["classes"]
    request = request_from_options(
        options["model"],
        options["data"],
        options["out"],
        task=task,
        images=options["images"],
        splits=options["split"],
        overrides=RunOverrides(**{name: options.get(name) for name in changed}),
        class_names=None if classes is None else read_class_names(classes),
        **{name: options[name] for name in kept},
        **{name: options[name] for name in ("proposals", "proposals_from", "others") if name in options},
    )
    if options["dry_run"]:
        from roiline.infer.dry_run import describe_run

        click.echo(describe_run(request))
        return
    summary = run_dataset(request, progress=LOG.isEnabledFor(logging.INFO))
    for file in summary.files:
        click.echo(str(file))
    if summary.failed:
        LOG.warning("%d of %d pictures failed; failed.json names them and why", summary.failed, summary.images)
    click.get_current_context().exit(summary.exit_code)


@main.command("track", cls=LoggedCommand)
@click.argument("model", type=PATH)
@click.argument("pairs", type=PATH)
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="OUT", help="Folder of the results.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda or cuda:N.")
@click.option("--engine", default="auto", show_default=True, metavar="NAME", help="What runs the model.")
@THRESHOLD_OPTIONS
def track_command(model: Path, pairs: Path, out: Path, device: str, engine: str, **changed: Any) -> None:
    """Find detections again in the next picture: PAIRS is a text file with two picture paths a line."""
    from roiline.infer.devices import device_from_text
    from roiline.infer.request import RunOverrides
    from roiline.infer.tracking import track_pairs

    overrides = RunOverrides(**changed)
    summary = track_pairs(model, pairs, out, device=device_from_text(device), engine=engine, overrides=overrides)
    for file in summary.files:
        click.echo(str(file))
    if summary.failed:
        LOG.warning("%d of %d pairs failed; the file names them and why", summary.failed, summary.images)
    click.get_current_context().exit(summary.exit_code)


@main.command("merge", cls=LoggedCommand)
@click.argument("outs", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="OUT", help="Folder of the joined results.")
@click.option("--format", "formats", multiple=True, metavar="NAME", help="Result format; may be given several times.")
def merge_command(outs: tuple[Path, ...], out: Path, formats: tuple[str, ...]) -> None:
    """Join runs over ranges of one dataset into the results of one run."""
    from roiline.infer.outputs import merge_outputs

    summary = merge_outputs(outs, out, formats=formats)
    for file in summary.files:
        click.echo(str(file))
    click.get_current_context().exit(summary.exit_code)


@main.command("status", cls=LoggedCommand)
@click.argument("out", type=PATH)
def status_command(out: Path) -> None:
    """Say what a run has done, what is left, and when it will end; also while it goes on."""
    from roiline.infer.status import describe_status, read_status

    click.echo(describe_status(read_status(out)))


# --- results ---------------------------------------------------------------------------------------------------------


def _load_datasets(
    results: Path,
    data: tuple[str, ...],
    images: tuple[Path, ...],
    splits: tuple[str, ...],
    classes: str | None,
    *,
    need_pictures: bool,
) -> list[Any]:
    from roiline.infer.datasets import load_dataset
    from roiline.infer.python_api import pair_sources
    from roiline.report.results import class_names_of_run

    names = class_names_of_run(results, None if classes is None else read_class_names(classes))
    return [
        load_dataset(
            source.source,
            images=source.images,
            split=source.split,
            class_names=names,
            need_pictures=need_pictures,
        )
        for source in pair_sources(data, images, splits)
    ]


@main.command("evaluate", cls=LoggedCommand)
@click.argument("results", type=PATH)
@click.argument("data", nargs=-1, required=True)
@DATA_OPTIONS
@click.option("-o", "--output", "out", type=PATH, metavar="OUT", help="Where to write metrics.json (default: RESULTS).")
def evaluate_command(
    results: Path,
    data: tuple[str, ...],
    images: tuple[Path, ...],
    split: tuple[str, ...],
    classes: str | None,
    out: Path | None,
) -> None:
    """Score boxes, masks and keypoints (COCO) and proposals (average recall) against a dataset's ground truth."""
    from roiline.report.evaluation import evaluate

    datasets = _load_datasets(results, data, images, split, classes, need_pictures=False)
    evaluation = evaluate(results, datasets, out=out)
    click.echo(evaluation.table)
    if evaluation.file is not None:
        click.echo(str(evaluation.file))


@main.command("draw", cls=LoggedCommand)
@click.argument("results", type=PATH)
@click.argument("data")
@DATA_OPTIONS
@click.option("-o", "--output", "out", type=PATH, required=True, metavar="DIR", help="Folder of the pictures.")
@click.option("--thresh", type=float, metavar="S", help="Draw what scores at least S (default: 0.7 for detections).")
@click.option("--top", type=int, default=100, show_default=True, metavar="N", help="Proposals a picture at most.")
@click.option("--ground-truth", is_flag=True, help="Draw the dataset's own boxes too, dashed.")
def draw_command(
    results: Path,
    data: str,
    images: tuple[Path, ...],
    split: tuple[str, ...],
    classes: str | None,
    out: Path,
    thresh: float | None,
    top: int,
    ground_truth: bool,
) -> None:
    """Draw results into pictures."""
    from roiline.report.drawing import draw_results
    from roiline.report.results import class_names_of_run

    (dataset,) = _load_datasets(results, (data,), images, split, classes, need_pictures=True)
    names = class_names_of_run(results, None if classes is None else read_class_names(classes)) or ()
    drawing = draw_results(results, dataset, out, thresh=thresh, top=top, ground_truth=ground_truth, class_names=names)
    for image_id, reason in drawing.failed:
        LOG.warning("%s: %s", image_id, reason)
    rest = len(dataset.entries) - len(drawing.files) - len(drawing.failed)
    blank = f"; {rest} have nothing to show (see --thresh)" if rest else ""
    click.echo(f"{len(drawing.files)} of {len(dataset.entries)} pictures in {out}{blank}")


# --- checks ----------------------------------------------------------------------------------------------------------


@main.command("inspect", cls=LoggedCommand)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--images", type=PATH, metavar="DIR", help="Picture folder of a COCO json.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def inspect_command(paths: tuple[str, ...], images: Path | None, as_json: bool) -> None:
    """Say what weights, configurations, models, datasets and results are, and everything that is wrong with them.

    Weights and configurations that are named together are compared.
    """
    from roiline.checks.inspection import inspect_paths

    report = inspect_paths(paths, images=images)
    click.echo(json.dumps(report.to_plain(), indent=1, ensure_ascii=False) if as_json else report.to_text())
    click.get_current_context().exit(EXIT_DONE if report.ok else EXIT_INPUT)


if __name__ == "__main__":
    main()
