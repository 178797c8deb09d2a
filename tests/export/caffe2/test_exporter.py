from __future__ import annotations

import hashlib
import json
import lzma
import pickle
import zipfile

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_entry, encode_fill, encode_net, encode_operator, export_net, run_model
from model_cases import write_weights
from shared_data import shared_path

from roiline.core.errors import ModelError, UsageError
from roiline.engines.model_file import cut_model, read_spec
from roiline.engines.protocol import Stage
from roiline.export.caffe2.exporter import export_caffe2
from roiline.export.caffe2.netdef import net_from_bytes
from roiline.export.caffe2.protobuf import walk_fields
from roiline.ops.anchors import generate_anchors

POOL = encode_operator("MaxPool", ["x"], ["y"], {"kernel": 1})
BOX_PIXELS, SCORE = 0.01, 1e-4


def read_blobs(case, folder):
    """Returns the weights of a golden model by their recipe."""
    description = shared_path(f"golden/e2e/{case}.json")
    weights = write_weights(json.loads(description.read_text()), description.parent, folder)
    return pickle.loads(weights.read_bytes())["blobs"]


def write_fpn_tiny(folder):
    """Writes the init net of fpn_tiny from its recipe, held against the digests of the original's own."""
    info = json.loads(shared_path("golden/pb/fpn_tiny/info.json").read_text())
    blobs = read_blobs(info["case"], folder)
    for level in range(2, 7):
        blobs[f"anchor{level}"] = generate_anchors(2.0**level, (32.0 * 2 ** (level - 2),), (0.5, 1, 2)).astype(
            np.float32
        )
    fills = []
    for name, (kind, shape, digest) in info["init"].items():
        array = blobs.get(name, np.zeros(0, np.float32)).reshape(shape)
        assert kind == "GivenTensorFill"
        assert hashlib.sha1(array.tobytes()).hexdigest() == digest  # noqa: S324
        fills.append(encode_fill(name, array))
    init = folder / "model_init.pb"
    init.write_bytes(encode_net(fills))
    return init


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Gives (net, init) of the golden pairs by name."""
    fused = shared_path("golden/pb/fpn_tiny_fused")
    plain = shared_path("golden/pb/fpn_tiny/model.pb")
    folder = tmp_path_factory.mktemp("pairs")
    init = folder / "fused_init.pb"
    init.write_bytes(lzma.decompress((fused / "model_init.pb.xz").read_bytes()))
    return {"fpn_tiny": (plain, write_fpn_tiny(folder)), "fpn_tiny_fused": (fused / "model.pb", init)}


@pytest.mark.golden
@pytest.mark.parametrize("case", ["fpn_tiny", "fpn_tiny_fused"])
def test_answers_as_the_original_net(tmp_path, pairs, case):
    report = export_caffe2(*pairs[case], tmp_path / "model.onnx")
    assert report.inputs == ("data", "im_info")
    assert report.outputs == ("score_nms", "bbox_nms", "class_nms")
    assert report.leftovers == ()
    model = onnx.load(report.path)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Conv"), kinds.count("Mul")) == (
        76,
        1,
    )  # affine channels are folded; the one product is an area of RoIs
    taps = ("rpn_rois", "cls_prob", "bbox_pred", "pred_bbox")
    tapped = tmp_path / "tapped.onnx"
    onnx.save(cut_model(model, Stage(outputs=(*report.outputs, *taps)), where="model"), tapped)
    with np.load(shared_path(f"golden/pb/{case}/run.npz")) as run:
        for picture in ("padded", "unpadded"):
            feeds = {name: run[f"{picture}/{name}"] for name in report.inputs}
            got = run_model(tapped, feeds)
            for name in (*report.outputs, *taps):
                expected = run[f"{picture}/{name}"]
                assert got[name].shape == expected.shape
                boxes = name in {"rpn_rois", "pred_bbox", "bbox_nms"}
                np.testing.assert_allclose(got[name], expected, atol=BOX_PIXELS if boxes else SCORE, rtol=0)
            np.testing.assert_array_equal(got["class_nms"], run[f"{picture}/class_nms"])
            whole = run_model(report.path, feeds)
            for name in report.outputs:
                np.testing.assert_array_equal(whole[name], got[name])


@pytest.mark.golden
def test_the_same_pair_gives_the_same_bytes(tmp_path, pairs):
    first, second = (export_caffe2(*pairs["fpn_tiny"], tmp_path / name).path for name in ("a.onnx", "b.onnx"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.golden
def test_python_operators_are_named(tmp_path):
    with zipfile.ZipFile(shared_path("golden/e2e/nets.zip")) as nets:
        (tmp_path / "net.pb").write_bytes(nets.read("faster_R50_FPN_small.net.pb"))
    (tmp_path / "init.pb").write_bytes(encode_net([encode_fill("w", np.zeros(1, np.float32))]))
    with pytest.raises(Exception, match=r"(?s)Python \(x 6, the first makes gpu_0/rpn_rois_fpn2.*export detectron"):
        export_caffe2(tmp_path / "net.pb", tmp_path / "init.pb", tmp_path / "model.onnx")


@pytest.mark.golden
def test_a_scoped_net_with_its_proposals_given(tmp_path):
    """Runs Detectron's own net of a C4 model without its Python operators: RPN outputs, and the head on the original's RoIs."""
    with zipfile.ZipFile(shared_path("golden/e2e/nets.zip")) as nets:
        content = nets.read("faster_R50_C4_small.net.pb")
    operators = [bytes(entry.data) for entry in walk_fields(memoryview(content)) if entry.number == 2]
    kinds = [operator.type for operator in net_from_bytes(content).operators]
    kept = [operator for operator, kind in zip(operators, kinds, strict=True) if kind != "Python"]
    blobs = {f"gpu_0/{name}": array for name, array in read_blobs("faster_R50_C4_small", tmp_path).items()}
    outputs = [f"gpu_0/{name}" for name in ("rpn_cls_probs", "rpn_bbox_pred", "cls_prob", "bbox_pred")]
    (tmp_path / "net.pb").write_bytes(encode_net(kept, ["gpu_0/data", "gpu_0/rpn_rois", *blobs], outputs))
    (tmp_path / "init.pb").write_bytes(encode_net([encode_fill(name, array) for name, array in blobs.items()]))
    report = export_caffe2(tmp_path / "net.pb", tmp_path / "init.pb", tmp_path / "model.onnx")
    with np.load(shared_path("golden/e2e/faster_R50_C4_small.npz")) as stored:
        feeds = {"gpu_0/data": stored["blob/data"], "gpu_0/rpn_rois": stored["blob/rois"]}
        got = run_model(report.path, feeds)
        for name in outputs:
            np.testing.assert_allclose(got[name], stored[name.replace("gpu_0/", "blob/")], atol=SCORE, rtol=1e-4)
        none = run_model(report.path, {**feeds, "gpu_0/rpn_rois": np.zeros((0, 5), np.float32)})
    assert none["gpu_0/cls_prob"].shape == (0, got["gpu_0/cls_prob"].shape[1])


def test_what_the_init_net_has_too_much_is_listed(tmp_path):
    report = export_net(
        tmp_path, [POOL], ["x"], ["y"], {"extra": np.zeros(2, np.float32), "data": np.zeros(0, np.float32)}
    )
    assert report.leftovers == ("not used: extra",)
    assert report.inputs == ("x",)
    assert report.warnings == ("data: an input of the net that no operator takes; left out",)


def test_without_a_configuration_the_model_runs_over_no_dataset(tmp_path):
    report = export_net(tmp_path, [POOL], ["x"], ["y"])
    spec = read_spec(report.path)
    assert spec == report.spec
    assert (spec.tasks, spec.class_names, spec.images, spec.detection) == ((), (), None, None)
    assert spec.seams == {"images": ("x",), "outputs": ("y",)}
    assert (spec.architecture, spec.source.kind) == ("net", "caffe2")


@pytest.mark.parametrize("options", [{"class_names": ("a",)}, {"overrides": (("TEST.SCALE", "100"),)}])
def test_settings_of_dataset_runs_want_a_configuration(tmp_path, options):
    with pytest.raises(UsageError, match="give --cfg"):
        export_net(tmp_path, [POOL], ["x"], ["y"], **options)


def test_a_damaged_init_net_is_named(tmp_path):
    (tmp_path / "net.pb").write_bytes(encode_net([POOL], ["x"], ["y"]))
    (tmp_path / "init.pb").write_bytes(encode_entry(2, b"\x0a\xff\xff\xff\x0f"))
    with pytest.raises(ModelError, match=r"init\.pb: this is no whole Caffe2 NetDef"):
        export_caffe2(tmp_path / "net.pb", tmp_path / "init.pb", tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
