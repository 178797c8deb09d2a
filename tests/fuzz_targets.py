"""Every reader of files that come from elsewhere, with inputs to bend and one function that reads a file.

A reader may answer or raise an error of ours; anything else is a finding.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import caffe2_nets
import cv2
import fuzz_inputs as inputs
import numpy as np
import run_support

from roiline.core.pickles import read_pickle
from roiline.core.spec import spec_from_json
from roiline.core.structures import Detections
from roiline.core.yamls import load_yaml
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import TensorInfo
from roiline.engines.tensorrt.passport import Machine, Passport, passport_path, read_passport, write_passport
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.trimming import OutputTrim
from roiline.export.caffe2.fillers import fill_blobs
from roiline.export.caffe2.netdef import read_net
from roiline.export.detectron import config as detectron_config
from roiline.export.detectron.weights import read_weights
from roiline.export.detectron2 import config as detectron2_config
from roiline.infer.datasets import load_dataset
from roiline.infer.devices import parse_gpus
from roiline.infer.manifest import RUN_FILE, read_manifest
from roiline.infer.pairs import read_pairs
from roiline.infer.pictures import decode_picture, read_bytes, read_size
from roiline.infer.proposal_files import read_proposal_file
from roiline.infer.shards import MAGIC, open_shard, shard_path, write_shard
from roiline.infer.trace import FORMAT_VERSION as TRACE_VERSION
from roiline.infer.trace import read_trace
from roiline.report.benchmark.document import FORMAT_VERSION as REPORT_VERSION
from roiline.report.benchmark.document import KIND, read_report
from roiline.report.comparison.loose_results import read_loose_results
from roiline.report.results import read_result_file

IDENTITY = "ab" * 32
Reader = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Target:
    """Is one reader: `generate` makes inputs, `prepare(folder)` returns (the file that an input is written to, what reads it)."""

    generate: inputs.Generator
    prepare: Callable[[Path], tuple[Path, Reader]]


def _plain(name: str, read: Reader) -> Callable[[Path], tuple[Path, Reader]]:
    return lambda folder: (folder / name, read)


# --- seeds -----------------------------------------------------------------------------------------------------------

_ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
_BLOBS = {
    "conv1_w": np.ones((4, 3, 3, 3), np.float32),
    "conv1_b": np.zeros(4, np.float32),
    "conv1_w_momentum": np.ones((4, 3, 3, 3), np.float32),
    "cls_score_w": np.ones((3, 4), np.float32),
    "weight_order": b"x",
}
_CONFIG = """MODEL:
  TYPE: generalized_rcnn
  CONV_BODY: FPN.add_fpn_ResNet50_conv5_body
  NUM_CLASSES: 4
  FASTER_RCNN: True
  BBOX_REG_WEIGHTS: (10., 10., 5., 5.)
FPN: {FPN_ON: True, MULTILEVEL_ROIS: true, MULTILEVEL_RPN: true, RPN_ANCHOR_START_SIZE: 32}
FAST_RCNN:
  ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head
  ROI_XFORM_METHOD: RoIAlign
TEST:
  SCALE: 800
  NMS: 0.5
  DATASETS: ('coco_2014_minival',)
  BBOX_AUG: {ENABLED: false, SCALES: [400, 500]}
PIXEL_MEANS: [102.9801, 115.9465, 122.7717]
"""
_SCALAR = "!!python/object/apply:numpy.core.multiarray.scalar [1, 2]"
_CONFIG2 = """_BASE_: []
VERSION: 2
MODEL:
  META_ARCHITECTURE: GeneralizedRCNN
  PIXEL_MEAN: [103.53, 116.28, 123.675]
  RESNETS: {DEPTH: 50, OUT_FEATURES: [res2, res3, res4, res5]}
  ANCHOR_GENERATOR:
    SIZES: !!python/object/apply:eval ["[[x, x * 2] for x in [32, 64]]"]
  ROI_HEADS: {NUM_CLASSES: 80, IOU_THRESHOLDS: [0.5]}
INPUT: {FORMAT: BGR, MIN_SIZE_TEST: 800}
"""
_COCO = {
    "info": {"year": 2017},
    "images": [
        {"id": 7, "file_name": "a b.png", "height": 40, "width": 60},
        {"id": 9, "file_name": "sub/ü.png", "height": -1, "width": 0, "coco_url": "x"},
    ],
    "categories": [{"id": 1, "name": "cat"}, {"id": 90, "name": "dog", "supercategory": "animal", "keypoints": ["nose"]}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 1, "bbox": [1, 2, 30.5, 20], "area": 610, "iscrowd": 0,
         "segmentation": [[1, 2, 30, 2, 30, 20]], "keypoints": [3, 4, 2], "num_keypoints": 1},
        {"id": 2, "image_id": 7, "category_id": 90, "bbox": [0, 0, 60, 40], "iscrowd": 1,
         "segmentation": {"size": [40, 60], "counts": [0, 2400]}},
    ],
}  # fmt: skip
_VOC = """<annotation><folder>VOC</folder><filename>a.png</filename><size><width>60</width><height>40</height><depth>3</depth></size>
<object><name>cat</name><pose>x</pose><truncated>0</truncated><difficult>1</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax><ymax>20</ymax></bndbox></object>
<object><name>dog</name><bndbox><xmin>5</xmin><ymin>6</ymin><xmax>50</xmax><ymax>40</ymax></bndbox></object></annotation>"""
_XML_PIECES = ("<", ">", "</object>", "<object>", "<!DOCTYPE a [<!ENTITY b 'c'>]>",
               "&b;", "&#0;", "<![CDATA[", "]]>", "<!--", "nan", "1e999", "-1", "", "<name/>", "\x00")  # fmt: skip
_PROPOSALS = {
    "boxes": [np.array([[1, 2, 30, 20], [0, 0, 5, 5]], np.float32), np.zeros((0, 4), np.float32)],
    "scores": [np.array([0.9, 0.1], np.float32), np.zeros(0, np.float32)],
    "ids": [7, 9],
    "cfg": "MODEL:\n  NUM_CLASSES: 4\n",
}
_PROPOSALS2 = {
    "boxes": _PROPOSALS["boxes"],
    "objectness_logits": _PROPOSALS["scores"],
    "ids": [7, 9],
    "bbox_mode": 0,
}
_PROPOSALS3 = {
    "data/a.png": {"bboxes": _PROPOSALS["boxes"][0], "scores": _PROPOSALS["scores"][0]},
    "data/b.png": {"bboxes": _PROPOSALS["boxes"][1], "scores": _PROPOSALS["scores"][1]},
}
_SPREAD = {"median": 2.0, "least": 1.0, "most": 3.0, "rounds": [1.0, 2.0, 3.0]}
_REPORT = {
    "kind": KIND,
    "format_version": REPORT_VERSION,
    "created_at": "2030-01-02T03:04:05+00:00",
    "headline": {"images_per_s": 2.0, "engine_images_per_s": 2.5},
    "subject": {"model": "m.onnx"},
    "machine": {"cpu": "x", "cores": 2},
    "spread": {
        "images_per_s": _SPREAD,
        "engine_images_per_s": _SPREAD,
        "stages_ms": {"run": {"infer": _SPREAD}, "alone": {"decode": _SPREAD}},
    },
}
_TRACE = {
    "format_version": TRACE_VERSION,
    "otherData": {"devices": {"0": "cpu 0"}, "wall_s": 2.5},
    "traceEvents": [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "main"}},
        {"ph": "X", "name": "infer", "pid": 0, "tid": 1, "ts": 1.0, "dur": 2e6, "args": {"shard": 0, "images": [7, 9]}},
    ],
}
_RESULTS = [
    {"image_id": 7, "category_id": 1, "bbox": [1.0, 2.0, 30.5, 20.0], "score": 0.9},
    {"image_id": 7, "category_id": 90, "bbox": [0, 0, 5, 5], "score": 1e-3},
]
_MASKS = [{"image_id": 7, "category_id": 1, "segmentation": {"size": [40, 60], "counts": "0`0"}, "score": 0.9}]
_KEYPOINTS = [{"image_id": 7, "category_id": 1, "keypoints": [1.0, 2.0, 0.5] * 17, "score": 0.9}]
_PICKLED = {
    "all_boxes": [[], [np.array([[1, 2, 30, 20, 0.9]], np.float32), []], [[], np.zeros((0, 5), np.float32)]],
    "all_segms": [[], [[{"size": [40, 60], "counts": b"0`0"}], []], [[], []]],
    "all_keyps": [[], [[np.zeros((4, 17), np.float32)], []], [[], []]],
    "cfg": "MODEL:\n  NUM_CLASSES: 3\n",
}


def _net_seed() -> bytes:
    conv = caffe2_nets.encode_operator(
        "Conv", ["data", "w", "b"], ["x"], {"kernel": 3, "stride": 1, "pad": 1, "order": "NCHW"}
    )
    return caffe2_nets.encode_net([conv], ["data"], ["x"])


def _fill_seed() -> bytes:
    return caffe2_nets.encode_net([caffe2_nets.encode_fill("w", _ARRAY)], [], ["w"])


def _model_seed(folder: Path) -> bytes:
    return run_support.write_model(folder / "seed.onnx").read_bytes()


def _shard_seed(folder: Path) -> bytes:
    boxes, scores, classes = np.ones((2, 4), np.float32), np.array([0.9, 0.5], np.float32), np.array([1, 2], np.int64)
    write_shard(
        shard_path(folder, 0),
        identity=IDENTITY,
        index=0,
        task="detections",
        results=[
            (0, Detections(image_id=7, boxes=boxes, scores=scores, classes=classes)),
            (1, Detections(image_id=9, boxes=boxes[:0], scores=scores[:0], classes=classes[:0])),
        ],
    )
    return shard_path(folder, 0).read_bytes()


def _picture_seeds() -> list[bytes]:
    noise = np.random.default_rng(3).integers(0, 256, (8, 12, 3), np.uint8)
    kinds = (".png", ".jpg", ".bmp", ".ppm", ".webp", ".tiff")
    seeds = [bytes(cv2.imencode(kind, noise)[1]) for kind in kinds]
    seeds.append(bytes(cv2.imencode(".png", noise.astype(np.uint16) * 200)[1]))
    exif = b"\xff\xe1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    jpeg = seeds[1]
    return [seed for seed in [*seeds, jpeg[:2] + exif + jpeg[2:]] if len(seed) <= inputs.LARGEST]


# --- readers ---------------------------------------------------------------------------------------------------------


def _dataset(folder: Path) -> object:
    path = folder / "coco.json"
    if not path.exists():
        path.write_text(json.dumps(_COCO))
    return load_dataset(str(path), need_pictures=False)


def _prepare_results(name: str) -> Callable[[Path], tuple[Path, Reader]]:
    def prepare(folder: Path) -> tuple[Path, Reader]:
        dataset = _dataset(folder)
        return folder / name, lambda path: read_result_file(path, dataset)

    return prepare


def _prepare_voc(folder: Path) -> tuple[Path, Reader]:
    root = folder / "voc"
    for name in ("Annotations", "JPEGImages"):
        (root / name).mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(root / "JPEGImages" / "a.png"), np.zeros((40, 60, 3), np.uint8))
    read = lambda _path: load_dataset(str(root), class_names=("cat", "dog"), need_pictures=False)  # noqa: E731
    return root / "Annotations" / "a.xml", read


def _passport_seed(folder: Path) -> bytes:
    plan = folder / "seed.plan"
    passport = Passport(
        spec=run_support.make_spec(),
        engine_sha256="0" * 64,
        engine_bytes=3,
        machine=Machine("11.4.0.106", "13.0", "NVIDIA H200", "9.0"),
        version_compatible=False,
        hardware_compatible=False,
        identity={"weights": "a" * 64},
        inputs=(TensorInfo("data", "float32", (None, 3, None, None)),),
        outputs=(TensorInfo("boxes", "float32", (None, None, 4)),),
        trims=(OutputTrim("boxes", "padded", "count"),),
        profiles=(Profile({"data": ((1, 3, 32, 32), (2, 3, 32, 64), (2, 3, 64, 96))}),),
        plugins={"PadRows_12345678": "b" * 64},
        precision=(),
        gates={"scores": "passed: 7 rows"},
    )
    write_passport(plan, passport)
    return passport_path(plan).read_bytes()


def _prepare_passport(folder: Path) -> tuple[Path, Reader]:
    plan = folder / "m.plan"
    return passport_path(plan), lambda _path: read_passport(plan)


def _prepare_shard(folder: Path) -> tuple[Path, Reader]:
    def read(path: Path) -> object:
        shard = open_shard(path.parent, 0, identity=IDENTITY, positions=(0, 1))
        return shard.header

    return shard_path(folder, 0), read


def _read_picture(path: Path) -> object:
    read_size(path)
    return decode_picture(read_bytes(path), where=path, max_pixels=1 << 22)


def _read_fills(path: Path) -> object:
    net, _ = read_net(path)
    return fill_blobs(net, str(path))


def _read_spec_text(path: Path) -> object:
    return spec_from_json(path.read_bytes().decode("utf-8", "replace"), where=str(path))


def _read_yaml(path: Path) -> object:
    return load_yaml(path.read_bytes(), source=str(path))


def _read_gpus(path: Path) -> object:
    return parse_gpus(path.read_bytes().decode("utf-8", "replace"))


def build_targets(folder: Path) -> dict[str, Target]:
    """Returns every target by name; `folder` is for the files that seeds are made with."""
    spec_tree = json.loads(run_support.make_spec().to_json())
    run_tree = json.loads(_run_file(folder))
    coco_like = inputs.json_inputs([_COCO])
    return {
        "pickle": Target(
            inputs.pickle_inputs([_BLOBS, _ARRAY, OrderedDict(a=_ARRAY), [1, (2, {"x": b"y"})], np.float64(3), {1, 2}]),
            _plain("x.pkl", read_pickle),
        ),
        "detectron weights": Target(
            inputs.pickle_inputs([{"blobs": _BLOBS, "cfg": _CONFIG}, _BLOBS]), _plain("w.pkl", read_weights)
        ),
        "yaml": Target(inputs.yaml_inputs([_plain_yaml(_CONFIG)]), _plain("x.yaml", _read_yaml)),
        "detectron configuration": Target(
            inputs.yaml_inputs([_plain_yaml(_CONFIG)]), _plain("cfg.yaml", detectron_config.load_config)
        ),
        "detectron configuration text": Target(
            inputs.text_inputs(
                [_CONFIG], [_SCALAR, "!!python/tuple ", "(", ")", "'", "&a", "*a", "08", "1e9999", "\t"]
            ),
            _plain("cfg.yaml", detectron_config.load_config),
        ),
        "detectron2 configuration": Target(
            inputs.text_inputs(
                [_CONFIG2], ["_BASE_: x\n", "eval [", "* x", "**9", "for", "[[", "{", "!!python", "lambda: 0", "'"]
            ),
            _plain("cfg.yaml", detectron2_config.load_config),
        ),
        "netdef": Target(inputs.protobuf_inputs([_net_seed(), _fill_seed()]), _plain("model.pb", read_net)),
        "netdef fills": Target(inputs.protobuf_inputs([_fill_seed()]), _plain("init.pb", _read_fills)),
        "onnx file": Target(inputs.protobuf_inputs([_model_seed(folder)]), _plain("m.onnx", read_spec)),
        "specification": Target(inputs.json_inputs([spec_tree]), _plain("spec.json", _read_spec_text)),
        "coco json": Target(coco_like, _plain("d.json", lambda path: load_dataset(str(path), need_pictures=False))),
        "voc xml": Target(inputs.text_inputs([_VOC], _XML_PIECES), _prepare_voc),
        "shard": Target(inputs.sealed_inputs(inputs.headed_inputs(_shard_seed(folder), len(MAGIC))), _prepare_shard),
        "run record": Target(inputs.json_inputs([run_tree]), _plain(RUN_FILE, lambda path: read_manifest(path.parent))),
        "proposal file": Target(
            inputs.pickle_inputs([_PROPOSALS, _PROPOSALS2, _PROPOSALS3, {**_PROPOSALS, "indexes": [7, 9]}]),
            _plain("p.pkl", read_proposal_file),
        ),
        "passport": Target(inputs.json_inputs([json.loads(_passport_seed(folder))]), _prepare_passport),
        "benchmark report": Target(inputs.json_inputs([_REPORT]), _plain("report.json", read_report)),
        "trace": Target(inputs.json_inputs([_TRACE]), _plain("trace.json", read_trace)),
        "loose json results": Target(inputs.json_inputs([_RESULTS]), _plain("bbox.json", read_loose_results)),
        "loose pickled results": Target(
            inputs.pickle_inputs([_PICKLED, _PROPOSALS]), _plain("detections.pkl", read_loose_results)
        ),
        "json results": Target(inputs.json_inputs([_RESULTS, _MASKS, _KEYPOINTS]), _prepare_results("bbox.json")),
        "pickled results": Target(inputs.pickle_inputs([_PICKLED, _PROPOSALS]), _prepare_results("detections.pkl")),
        "picture": Target(inputs.byte_inputs(_picture_seeds()), _plain("p.img", _read_picture)),
        "picture list": Target(
            inputs.text_inputs(["a.png\nsub/b c.jpg\n# no\n\n"], ["\x00", "\t", "/", "..", "\r", "\ud800", "a" * 300]),
            _plain("list.txt", lambda path: load_dataset(str(path), need_pictures=False)),
        ),
        "pair list": Target(
            inputs.text_inputs(["a.png b.png\na c.png\tb.png\n"], ["\t", " ", "\x00", "\n"]),
            _plain("pairs.txt", read_pairs),
        ),
        "gpu list": Target(
            inputs.text_inputs(
                ["0-3", "0,2", "0-1,3", "GPU-8f1e"], ["-", ",", "99999999999", " ", "GPU-", "MIG-", "٣"]
            ),
            _plain("gpus.txt", _read_gpus),
        ),
    }


def _plain_yaml(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "!!" not in line) + "\n"


def _run_file(folder: Path) -> str:
    """Returns the record of a small real run."""
    from roiline.infer.run import run_dataset

    root = folder / "run"
    run_support.write_pictures(root / "pictures", 2)
    run_support.write_model(root / "model.onnx")
    run_dataset(run_support.make_request(root, root / "out"))
    return (root / "out" / RUN_FILE).read_text()
