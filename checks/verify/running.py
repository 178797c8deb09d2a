"""`roiline verify`, from files to files: the reference's source by the kind of checkpoint, the comparison, and the certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roiline.checks.verify.certificate import Certificate, Compared, make_certificate, write_certificate
from roiline.checks.verify.detectron2_plan import read_detectron2_source
from roiline.checks.verify.detectron_plan import read_detectron_source
from roiline.checks.verify.plan import ReferenceSource
from roiline.checks.verify.verification import OtherEngine, load_pictures, verify_model
from roiline.core.errors import UsageError
from roiline.engines.model_file import PLAN_SUFFIX, read_spec
from roiline.engines.protocol import Device

_SOURCES: Mapping[str, Callable[..., ReferenceSource]] = {
    "detectron": read_detectron_source,
    "detectron2": read_detectron2_source,
}


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Is what to compare: the model with its checkpoint, on pictures (none: some are made up), and further engines.

    `engine` runs the model file itself; `built` are engines that were built from it, run on the GPU `gpu`. `by_layer`: every tensor of
    the reference is compared, else the ends of its stages. `out` is the folder of the certificate (None: none is written).
    """

    model: Path
    cfg: Path
    weights: Path
    overrides: tuple[tuple[str, str], ...] = ()
    pictures: tuple[Path, ...] = ()
    by_layer: bool = False
    engine: str | None = None
    built: tuple[Path, ...] = ()
    gpu: int = 0
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """Is a finished verification: its certificate, and the files that were written."""

    certificate: Certificate
    files: tuple[Path, ...]


def run_verification(request: VerifyRequest) -> VerifyOutcome:
    """Compares and writes the certificate.

    Raises:
        RoilineError: a file cannot be read, model and checkpoint are of different kinds, or an engine could not run.
    """
    if request.model.suffix == PLAN_SUFFIX:
        raise UsageError(
            f"{request.model}: a built engine has no tensors to look at; verify the ONNX file that it was built from, with "
            f"--built {request.model}"
        )
    spec = read_spec(request.model)
    read_source = _SOURCES.get(spec.source.kind)
    if read_source is None:
        raise UsageError(
            f"{request.model}: the reference knows checkpoints of {', '.join(_SOURCES)}; this model was made from one of "
            f"{spec.source.kind}"
        )
    source = read_source(request.cfg, request.weights, request.overrides, proposals_only=spec.tasks == ("proposals",))
    pictures = load_pictures(request.pictures)
    found = verify_model(request.model, source, pictures, by_layer=request.by_layer, others=_list_engines(request))
    files = {"model": request.model, "weights": request.weights, "configuration": request.cfg}
    files |= {f"engine {path.name}": path for path in request.built}
    certificate = make_certificate(found, Compared(files, request.overrides, pictures))
    written = () if request.out is None else write_certificate(request.out, certificate)
    return VerifyOutcome(certificate, written)


def _list_engines(request: VerifyRequest) -> Sequence[OtherEngine]:
    asked = [] if request.engine is None else [OtherEngine(request.model, request.engine, Device())]
    return [*asked, *(OtherEngine(path, "auto", Device("cuda", request.gpu)) for path in request.built)]
