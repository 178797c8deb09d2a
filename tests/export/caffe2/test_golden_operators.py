from __future__ import annotations

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_operator, export_net, run_model
from golden_cases import golden_case, golden_cases

from roiline.core.errors import ExportError

OF_2020 = "ops/caffe2_torch_1.8.1"
OF_2018 = "ops/caffe2_torch_1.0.0"
WEIGHTS = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "FC": (1, 2),
    "GenerateProposals": (3,),
    "GenerateProposalsCPP": (3,),
    "GroupNorm": (1, 2),
}
FIRST_OUTPUT_ONLY = {"GroupNorm", "LRN", "RoIPool"}  # the others serve training
BOXES = {"BBoxTransform", "GenerateProposals", "GenerateProposalsCPP"}
ANY_RANK = {"BatchPermutation", "FC", "Softmax"}  # another operator must tell how many axes an input of the net has
LAYERS = (
    "AveragePool",
    "BatchPermutation",
    "Conv",
    "ConvTranspose",
    "FC",
    "GroupNorm",
    "HeatmapMaxKeypoint",
    "LRN",
    "MaxPool",
    "ResizeNearest",
    "Softmax",
    "UpsampleBilinear",
    "UpsampleNearest",
)
REGIONS = (
    "BBoxTransform",
    "BoxWithNMSLimit",
    "CollectAndDistributeFpnRpnProposals",
    "CollectRpnProposals",
    "DistributeFpnProposals",
    "GenerateProposals",
    "GenerateProposalsCPP",
    "RoIAlign",
    "RoIPool",
)
TIES = {"score_ties", "topk_ties", "limit_ties"}  # the operators' own tests compare those, as sets


def cases_of(folder, kinds):
    return [pytest.param(kind, *case.values, id=case.id) for kind in kinds for case in golden_cases(folder, kind)]


def run_case(folder, kind, case):
    """Translates a net of one operator, runs it on the case's inputs, and returns what it gives and what the original gave."""
    fixed = WEIGHTS.get(kind, ())
    names = [f"in{i}" for i in range(len(case.inputs))]
    fills = {names[i]: case.inputs[i] for i in fixed if i < len(names)} or None
    feeds = {name: array for i, (name, array) in enumerate(zip(names, case.inputs, strict=True)) if i not in fixed}
    outputs = [f"out{i}" for i in range(len(case.outputs))]
    wanted = outputs[:1] if kind in FIRST_OUTPUT_ONLY else outputs
    operators = []
    if kind in ANY_RANK:
        axes = list(range(case.inputs[0].ndim))
        operators.append(encode_operator("Transpose", ["in0"], ["shaped"], {"axes": axes}))
        names[0] = "shaped"
    operators.append(encode_operator(kind, names, outputs, case.args))
    report = export_net(folder, operators, list(feeds), wanted, fills)
    onnx.checker.check_model(onnx.load(report.path))
    assert report.inputs == tuple(feeds)
    assert report.outputs == tuple(wanted)
    got = run_model(report.path, feeds)
    return [got[name] for name in wanted], case.outputs[: len(wanted)]


def check_outputs(kind, got, expected):
    for array, wanted in zip(got, expected, strict=True):
        assert array.dtype == wanted.dtype
        assert array.shape == wanted.shape
        np.testing.assert_allclose(array, wanted, atol=2e-3 if kind in BOXES else 1e-5, rtol=1e-6)


@pytest.mark.golden
@pytest.mark.parametrize(("kind", "case"), cases_of(OF_2020, LAYERS))
def test_layers_match_caffe2(tmp_path, kind, case):
    check_outputs(kind, *run_case(tmp_path, kind, case))


@pytest.mark.golden
@pytest.mark.parametrize(("kind", "case"), cases_of(OF_2020, REGIONS))
def test_regions_match_caffe2(tmp_path, kind, case):
    if TIES & set(case.tags):
        pytest.skip("equal scores: their order is not defined; tests/ops compares these cases as sets")
    if case.args.get("soft_nms_enabled"):
        with pytest.raises(ExportError, match="soft-NMS"):
            run_case(tmp_path, kind, case)
        return
    if case.args.get("order") == "NHWC":
        with pytest.raises(ExportError, match="NHWC: only NCHW"):
            run_case(tmp_path, kind, case)
        return
    if case.error:
        pytest.skip("the original refused these inputs")
    got, expected = run_case(tmp_path, kind, case)
    if case.name == "RoIAlign_064":  # an RoI without width, aligned: 0 / 0 in Caffe2, 0 in ONNX Runtime
        assert np.isnan(expected[0][4]).all()
        assert (got[0][4] == 0).all()
        got, expected = [np.delete(got[0], 4, axis=0)], [np.delete(expected[0], 4, axis=0)]
    check_outputs(kind, got, expected)


@pytest.mark.golden
@pytest.mark.parametrize(
    ("kind", "case"), cases_of(OF_2018, ("BBoxTransform", "GenerateProposals", "GenerateProposalsCPP"))
)
def test_regions_of_2018_match_caffe2(tmp_path, kind, case):
    if TIES & set(case.tags):
        pytest.skip("equal scores: their order is not defined; tests/ops compares these cases as sets")
    if "correct_transform_coords" not in case.args:
        pytest.skip("a net without the argument is read as one of 2020")
    case = golden_case(OF_2018, case.name)
    check_outputs(kind, *run_case(tmp_path, kind, case))
