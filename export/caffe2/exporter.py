"""`roiline export caffe2`: a net and the net that fills its blobs into one model file."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from roiline.core.errors import ExportError, UsageError
from roiline.core.files import check_output
from roiline.core.spec import Conventions, ModelSpec, Precision, Source, Task
from roiline.export.caffe2.catalogue import refuse_unknown, translate_operators
from roiline.export.caffe2.datasets import DatasetSeams, write_dataset_seams
from roiline.export.caffe2.fillers import FILLERS, Array, fill_blobs
from roiline.export.caffe2.folding import fold_affine_channels
from roiline.export.caffe2.netdef import NetDef, read_net
from roiline.export.caffe2.regions import read_offsets
from roiline.export.caffe2.translation import Call, Translation
from roiline.export.detectron.config import DetectronConfig, load_config
from roiline.export.detectron.source import image_rules_from_config
from roiline.export.graph import GraphWriter, Shape
from roiline.export.model_writer import ExportReport, write_model
from roiline.export.precision import Calibration, check_precision, convert_model


@dataclass(frozen=True, slots=True)
class Caffe2Report(ExportReport):
    """Is what an export of a net made, with the model's `inputs` and `outputs` by name."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def export_caffe2(
    net: Path,
    init: Path,
    out: Path,
    *,
    cfg: Path | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    class_names: Sequence[str] | None = None,
    precision: Precision = "fp32",
    calibration: Calibration | None = None,
) -> Caffe2Report:
    """Exports a NetDef pair; inputs and outputs of the model are the net's own.

    With `cfg` (a Detectron configuration, for means, scale and padding) the model also runs over datasets, a picture a call.

    `precision` is that of the trunk's layers; int8 needs `calibration`, and fp16 is compared with fp32 by it where it is given.

    Raises:
        ModelError: a file cannot be read or is no NetDef.
        ExportError: operators are unknown (all are named) or cannot be translated.
        WeightError: blobs are not filled, or not as the operators need them.
        ConfigError: the configuration is wrong.
        UsageError: class names or settings without a configuration, or a net that cannot run over datasets with one;
            or `out` is one of the inputs.
        DataError: the calibration pictures cannot be used.
        EngineError: ONNX Runtime, which calibration needs, is not installed.
        OutputError: the model cannot be written.
    """
    check_precision(precision, calibration)
    check_output(out, [path for path in (net, init, cfg) if path is not None])
    if cfg is None and (class_names is not None or overrides or calibration is not None):
        raise UsageError("class names, settings and calibration belong to runs over datasets: give --cfg with them")
    config = None if cfg is None else load_config(cfg, overrides)
    definition, _ = read_net(net)
    filling, init_bytes = read_net(init)
    refuse_unknown(definition.operators, str(net))
    fills = fill_blobs(filling, str(init))
    translation = _translate(definition, fills, str(net))
    seams = DatasetSeams({}, 1) if config is None else write_dataset_seams(translation, str(net))
    inputs = _describe_inputs(translation, str(net), one_picture=config is not None)
    outputs = _describe_outputs(translation, str(net))
    digest = hashlib.sha256(init_bytes).hexdigest()
    spec = _write_spec(translation, seams, config, class_names, digest)
    spec = replace(spec, seams={"images": _names(inputs), **seams.seams, "outputs": _names(outputs)})
    model = translation.graph.finish(spec, translation.fills, inputs, outputs)
    _check_names(model, str(net))
    converted = convert_model(model, spec, precision, calibration)
    write_model(converted.model, out)
    return Caffe2Report(
        path=out,
        spec=converted.spec,
        inputs=_names(inputs),
        outputs=_names(outputs),
        warnings=(
            *_list_warnings(translation, _names(inputs), config, seams.num_classes),
            *converted.verdict.warnings,
        ),
        leftovers=tuple(f"not used: {name}" for name in translation.unused_fills),
        notes=converted.verdict.notes,
    )


def _list_warnings(
    translation: Translation, inputs: Sequence[str], config: DetectronConfig | None, num_classes: int
) -> tuple[str, ...]:
    warnings = [
        f"{name}: an input of the net that no operator takes; left out"
        for name in translation.inputs
        if name not in inputs
    ]
    if config is not None:
        warnings += config.warnings
        if num_classes > 1 and config["MODEL.NUM_CLASSES"] != num_classes:
            warnings.append(
                f"{config.source}: MODEL.NUM_CLASSES is {config['MODEL.NUM_CLASSES']}, and the net has {num_classes} classes, "
                "background included: is this the configuration of another model?"
            )
    return tuple(warnings)


def _translate(definition: NetDef, fills: Mapping[str, Array], where: str) -> Translation:
    """Translates a net over the blobs that are filled; values that the net states itself are filled too."""
    stated = [operator for operator in definition.operators if operator.type in FILLERS]
    rest = [operator for operator in definition.operators if operator.type not in FILLERS]
    own = fill_blobs(replace(definition, operators=tuple(stated)), where) if stated else {}
    written = {name for operator in rest for name in operator.outputs} & set(own)
    if written:
        raise ExportError(
            f"{where}: {', '.join(sorted(written))}: filled and also made by another operator, not translated"
        )
    known = {**fills, **own}
    inputs = [name for name in dict.fromkeys(definition.external_inputs) if name not in known or not known[name].size]
    values = {name: array for name, array in known.items() if name not in inputs}
    folded, values = fold_affine_channels(replace(definition, operators=tuple(rest)), values)
    translation = Translation(folded, GraphWriter({}), values, inputs)
    translate_operators(translation, where)
    return translation


def _describe_inputs(translation: Translation, where: str, *, one_picture: bool) -> list[onnx.ValueInfoProto]:
    infos = []
    unknown = [name for name, known in translation.inputs.items() if known.shape is None and translation.used[name]]
    if unknown:
        raise ExportError(
            f"{where}: {', '.join(unknown)}: inputs of the net of which no operator tells how many axes they have; an ONNX file must "
            "say it. Are they weights that the init net should fill?"
        )
    for name, known in translation.inputs.items():
        if known.shape is not None:
            shape = (1, *known.shape[1:]) if one_picture else known.shape
            infos.append(_value(name, known.dtype, shape))
    return infos


def _describe_outputs(translation: Translation, where: str) -> list[onnx.ValueInfoProto]:
    """Returns the net's outputs; each must be the last writing of its blob, which carries the name."""
    names = tuple(dict.fromkeys(translation.net.external_outputs))
    made = {name for operator in translation.net.operators for name in operator.outputs}
    bad = [name for name in names if name not in made or name in translation.inputs]
    if bad or not names:
        reason = (
            "the net names no external output"
            if not names
            else f"{', '.join(bad)}: outputs that no operator makes anew"
        )
        raise ExportError(f"{where}: {reason}; a model needs outputs of its own")
    infos = []
    for name in names:
        blob = translation.take(name)
        if blob is None or blob.shape is None:
            raise ExportError(f"{where}: {name}: an output of which no operator tells how many axes it has")
        infos.append(_value(name, blob.dtype, blob.shape))
    return infos


def _value(name: str, dtype: type[np.generic], shape: Shape) -> onnx.ValueInfoProto:
    dims = [f"{name}_{axis}" if size is None else size for axis, size in enumerate(shape)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)


def _names(infos: Sequence[onnx.ValueInfoProto]) -> tuple[str, ...]:
    return tuple(info.name for info in infos)


def _write_spec(
    translation: Translation,
    seams: DatasetSeams,
    config: DetectronConfig | None,
    class_names: Sequence[str] | None,
    digest: str,
) -> ModelSpec:
    count = seams.num_classes - 1
    if class_names is not None and (len(class_names) != count or len(set(class_names)) != count):
        raise UsageError(
            f"--classes: the net has {count} classes beside the background; "
            f"{len(class_names)} names were given, {len(set(class_names))} of them different"
        )
    order: tuple[Task, ...] = ("proposals", "detections")
    return ModelSpec(
        architecture=translation.net.name or "caffe2",
        tasks=tuple(task for task in order if task in seams.seams),
        class_names=tuple(class_names or (f"class_{index}" for index in range(1, count + 1))),
        class_names_known=class_names is not None,
        conventions=_read_conventions(translation),
        images=None if config is None else image_rules_from_config(config),
        detection=None,
        seams={},
        source=Source("caffe2", digest, "" if config is None else config.yaml_text()),
    )


def _read_conventions(translation: Translation) -> Conventions:
    """Returns the net's way with boxes, as its first operator on boxes has it."""
    boxes = {"BBoxTransform", "GenerateProposals", "GenerateProposalsCPP"}
    first = next((operator for operator in translation.net.operators if operator.type in boxes), None)
    return Conventions(
        name="caffe2",
        plus_one=first is None or read_offsets(Call(translation, first))[0] == 1.0,
        nms_inclusive=False,
        roi_half_pixel=any(
            Call(translation, operator).flag("aligned", False)
            for operator in translation.net.operators
            if operator.type == "RoIAlign"
        ),
        delta_clip=math.log(1000.0 / 16.0),
    )


def _check_names(model: onnx.ModelProto, where: str) -> None:
    """Holds that every tensor has one maker: a blob may be named as a tensor that the translation names by itself."""
    made = Counter(name for node in model.graph.node for name in node.output)
    made.update(tensor.name for tensor in model.graph.initializer)
    made.update(info.name for info in model.graph.input)
    twice = sorted(name for name, count in made.items() if count > 1)
    if twice:
        raise ExportError(
            f"{where}: blobs named as the translation names tensors of its own: {', '.join(twice)}; rename them"
        )
