from __future__ import annotations

import numpy as np
import onnx
import pytest
from caffe2_nets import encode_operator, export_net, run_model
from golden_cases import golden_cases

from roiline.export.caffe2.catalogue import TRANSLATORS

CASES = "ops/caffe2_torch_1.8.1"
OF_2018 = "ops/caffe2_torch_1.0.0"
WEIGHTS = {"Conv": (1, 2), "ConvTranspose": (1, 2), "FC": (1, 2), "GroupNorm": (1, 2), "GenerateProposals": (3,)}
ONE_OUTPUT = {"GroupNorm", "LRN", "RoIPool"}


def run_case(tmp_path, kind, case):
    """Translates a net of one operator and runs it on the case's inputs."""
    fixed = WEIGHTS.get(kind.removesuffix("CPP"), ())
    names = [f"in{i}" for i in range(len(case.inputs))]
    fills = {names[i]: case.inputs[i] for i in fixed if i < len(names)} or None
    feeds = {name: array for i, (name, array) in enumerate(zip(names, case.inputs, strict=True)) if i not in fixed}
    outputs = [f"out{i}" for i in range(len(case.outputs))]
    wanted = outputs[:1] if kind in ONE_OUTPUT else outputs
    report = export_net(tmp_path, [encode_operator(kind, names, outputs, case.args)], list(feeds), wanted, fills)
    onnx.checker.check_model(onnx.load(report.path))
    assert report.inputs == tuple(feeds)
    assert report.outputs == tuple(wanted)
    got = run_model(report.path, feeds)
    return [got[name] for name in wanted], case.outputs[: len(wanted)]


SMALL = (
    "AveragePool",
    "BatchPermutation",
    "Conv",
    "ConvTranspose",
    "FC",
    "GroupNorm",
    "LRN",
    "MaxPool",
    "ResizeNearest",
    "Softmax",
    "UpsampleBilinear",
    "UpsampleNearest",
    "HeatmapMaxKeypoint",
    "RoIPool",
    "RoIAlign",
    "CollectRpnProposals",
    "DistributeFpnProposals",
    "CollectAndDistributeFpnRpnProposals",
    "BBoxTransform",
    "BoxWithNMSLimit",
    "GenerateProposals",
    "GenerateProposalsCPP",
)


@pytest.mark.parametrize(
    "kind,case", [pytest.param(k, *p.values, id=p.id) for k in SMALL for p in golden_cases(CASES, k)]
)
def test_all(tmp_path, kind, case):
    got, wanted = run_case(tmp_path, kind, case)
    for g, w in zip(got, wanted):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, atol=1e-4, rtol=1e-5)
