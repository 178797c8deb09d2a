"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from roiline.commands.logged import PATH
from roiline.core.errors import UsageError
from roiline.core.files import read_input

F = TypeVar("F", bound=Callable[..., Any])
_NAMES_LIMIT = 1 << 24
MAX_PIXELS = 1 << 28  # the same as `infer.pictures.MAX_PIXELS`, which a test holds; help is to need no numpy


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Joins option decorators into one; help shows them in this order."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


DATA_OPTIONS = options(
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

RUN_OPTIONS = options(
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
    click.option(
        "--cluster",
        metavar="auto|local|ADDRESS",
        help="Run on a Ray cluster, a worker a GPU (or a share of CPUs): the one that runs here, one made for this run, or its address.",
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
    click.option(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        show_default=True,
        metavar="N",
        help="Pictures of more pixels fail before they are decoded.",
    ),
    click.option(
        "--truncated",
        type=click.Choice(["skip", "accept", "stop"]),
        default="skip",
        show_default=True,
        help="What becomes of a picture whose file is cut short: it fails, what is there is used and marked, or the run ends.",
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
    click.option(
        "--image-timeout",
        "image_timeout_s",
        type=float,
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest time for one picture: a worker that hangs over one is ended; 0: none.",
    ),
    click.option("--fresh", is_flag=True, help="Start over instead of going on with what OUT holds."),
    click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
)

THRESHOLD_OPTIONS = options(
    click.option("--score-thresh", type=float, metavar="S", help="Keep detections that score above S."),
    click.option("--nms", "nms_thresh", type=float, metavar="T", help="Overlap at which NMS suppresses."),
    click.option("--max-dets", type=int, metavar="N", help="Detections a picture at most; 0: all."),
)

PARTNER_OPTIONS = options(
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
