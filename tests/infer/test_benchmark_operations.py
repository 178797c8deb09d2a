"""Operations and bytes by the graph, against counts made by hand from the published shapes of the network."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from roiline.engines.model_file import read_spec
from roiline.engines.profiling import NodeTime
from roiline.engines.protocol import Stage
from roiline.engines.registry import open_engine
from roiline.export.detectron.config import config_from_text
from roiline.export.detectron.exporter import export_detectron
from roiline.export.detectron.source import architecture_from_config
from roiline.export.networks import write_network
from roiline.infer.benchmark_operations import NodeParts, assign_parts, count_layers, join_costs

R50_FPN = """
MODEL: {TYPE: generalized_rcnn, CONV_BODY: FPN.add_fpn_ResNet50_conv5_body, NUM_CLASSES: 81, FASTER_RCNN: True}
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN: {ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head, ROI_XFORM_METHOD: RoIAlign, ROI_XFORM_RESOLUTION: 7}
TEST: {RPN_PRE_NMS_TOP_N: 100, RPN_POST_NMS_TOP_N: 50, SCORE_THRESH: 0.05, NMS: 0.5}
"""
HEIGHT, WIDTH = 224, 224
BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}
_CONV = re.compile(r"res(\d)_(\d+)_branch(1|2a|2b|2c)_w$")


class ResNet50Shapes(Mapping[str, tuple[int, ...]]):
    """Answers the published widths of ResNet-50 for the blobs whose width the weights decide."""

    def __getitem__(self, name: str) -> tuple[int, ...]:
        if name == "conv1_w":
            return (64, 3, 7, 7)
        found = _CONV.match(name)
        if found is None:
            raise KeyError(name)
        width = 64 * 2 ** (int(found[1]) - 2)
        return (4 * width if found[3] in ("1", "2c") else width,)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An R-50-FPN detector of the real widths; its weights are zeros."""
    folder = tmp_path_factory.mktemp("r50")
    network = write_network(
        architecture_from_config(config_from_text(R50_FPN, ()), proposals_only=False), ResNet50Shapes()
    )
    blobs = {need.name: np.zeros(need.shape, np.float32) for need in network.graph.requirements}
    (folder / "cfg.yaml").write_text(R50_FPN)
    (folder / "weights.pkl").write_bytes(pickle.dumps({"blobs": blobs}, protocol=2))
    export_detectron(folder / "cfg.yaml", folder / "weights.pkl", folder / "model.onnx")
    (folder / "weights.pkl").unlink()
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def feeds() -> dict[str, np.ndarray]:
    return {
        "data": np.zeros((1, 3, HEIGHT, WIDTH), np.float32),
        "im_info": np.array([[HEIGHT, WIDTH, 1]], np.float32),
        "im_size": np.array([[HEIGHT, WIDTH]], np.float32),
    }


def count_body(height: int, width: int) -> int:
    """Multiplications of ResNet-50 without its classifier, the stride in the first 1 x 1 of a stage (as MSRA published it)."""
    total = (height // 2) * (width // 2) * 64 * 3 * 49
    before = 64
    for stage, blocks in BLOCKS.items():
        pixels = (height // 2**stage) * (width // 2**stage)
        inner, outer = 64 * 2 ** (stage - 2), 256 * 2 ** (stage - 2)
        total += pixels * (before * outer + before * inner + 9 * inner * inner + inner * outer)
        total += (blocks - 1) * pixels * (outer * inner + 9 * inner * inner + inner * outer)
        before = outer
    return total


def count_pyramid(height: int, width: int) -> int:
    return sum(
        (height // 2**stage) * (width // 2**stage) * 256 * (256 * 2 ** (stage - 2) + 9 * 256) for stage in BLOCKS
    )


def count_rpn(height: int, width: int) -> int:
    coarsest = (-(-height // 64)) * (-(-width // 64))
    pixels = sum((height // 2**stage) * (width // 2**stage) for stage in BLOCKS) + coarsest
    return pixels * 256 * (9 * 256 + 3 + 12)


def count_head(rois: int) -> int:
    return rois * (49 * 256 * 1024 + 1024 * 1024 + 1024 * 81 + 1024 * 4 * 81)


def test_the_hand_count_is_that_of_the_paper() -> None:
    """He et al. 2015, table 1: 3.8 * 10^9 multiplications and additions, one of each counted as one, for a picture of 224 x 224."""
    assert count_body(224, 224) + 2048 * 1000 == pytest.approx(3.8e9, rel=0.02)


@pytest.mark.golden
def test_r50_fpn_is_within_one_percent_of_the_hand_count(model: Path, feeds: dict[str, np.ndarray]) -> None:
    spec = read_spec(model)
    seam = spec.seams["proposals"]
    with open_engine(model, stage=Stage(outputs=tuple(seam))) as engine:
        rois = int(engine.run({info.name: feeds[info.name] for info in engine.inputs})[seam[2]].sum())
    assert rois > 0
    costs = join_costs(count_layers(model, spec, feeds, stage=None))
    assert costs["trunk"][0] == pytest.approx(2 * (count_body(HEIGHT, WIDTH) + count_pyramid(HEIGHT, WIDTH)), rel=0.01)
    assert costs["proposals"][0] == pytest.approx(2 * count_rpn(HEIGHT, WIDTH), rel=0.01)
    assert costs["heads"][0] == pytest.approx(2 * count_head(rois), rel=0.01)
    weights = 4 * (49 * 256 * 1024 + 1024 * 1024 + 1024 * 5 * 81)
    activations = 4 * rois * (49 * 256 + 1024 * 2 + 1024 * 2 + 1024 + 81 + 1024 + 324 - 1024)
    assert costs["heads"][1] == pytest.approx(weights + activations, rel=0.01)


def test_a_stage_is_counted_alone(digits_model: Path, feeds: dict[str, np.ndarray]) -> None:
    spec = read_spec(digits_model)
    whole = join_costs(count_layers(digits_model, spec, feeds, stage=None))
    stage = Stage(outputs=tuple(spec.seams["proposals"]))
    costs = join_costs(count_layers(digits_model, spec, feeds, stage=stage))
    assert costs["heads"] == (0, 0)
    assert (costs["trunk"], costs["proposals"]) == (whole["trunk"], whole["proposals"])
    assert whole["heads"][0] > 0


def test_parts_follow_the_seams(digits_model: Path) -> None:
    spec, model = read_spec(digits_model), onnx.load(str(digits_model))
    parts = assign_parts(model, spec)
    by_output = {name: parts[node.name] for node in model.graph.node for name in node.output}
    assert {by_output[name] for name in spec.seams["features"]} == {"trunk"}
    assert {by_output[name] for name in spec.seams["proposals"]} == {"proposals"}
    assert {by_output[name] for name in spec.seams["detections"]} == {"heads"}


def test_names_of_a_profile_find_their_part(digits_model: Path) -> None:
    parts = NodeParts(onnx.load(str(digits_model)), read_spec(digits_model))
    assert parts.find("conv1_nchwc") == "trunk"
    assert parts.find("_inlfunc_GenerateProposals_token_3_Slice_76") == "proposals"
    assert parts.find("_inlfunc_DetectionOutput_Gather_5/fusion") == "heads"
    assert parts.find("ReorderOutput_token_215") is None
    times = [NodeTime("_inlfunc_Trim_Add_1", "Add", 1.0), NodeTime("ReorderInput", "ReorderInput", 0.5)]
    assert parts.sum_times(tuple(times)) == {"trunk": 0.0, "proposals": 0.0, "heads": 1.5}


LAYERS = [
    ("ConvTranspose", [1, 4, 5, 6], [4, 8, 2, 2], {"strides": [2, 2]}, 4 * 5 * 6 * 8 * 4),
    ("Conv", [1, 8, 6, 6], [8, 1, 3, 3], {"group": 8}, 8 * 4 * 4 * 9),
    ("Gemm", [7, 5], [7, 3], {"transA": 1}, 5 * 3 * 7),
    ("MatMul", [2, 7, 5], [5, 3], {}, 2 * 7 * 5 * 3),
]


@pytest.mark.parametrize(("op", "data", "weights", "attributes", "expected"), LAYERS, ids=[row[0] for row in LAYERS])
def test_each_layer_is_counted_by_its_own_rule(
    tmp_path: Path, digits_model: Path, op: str, data: list[int], weights: list[int], attributes: dict, expected: int
) -> None:
    parameter = numpy_helper.from_array(np.zeros(weights, np.float32), "w")
    node = helper.make_node(op, ["x", "w"], ["y"], name="layer", **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, data)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs, [parameter]), opset_imports=[helper.make_opsetid("", 20)]
    )
    model.ir_version = 10
    model.metadata_props.extend(onnx.load(str(digits_model), load_external_data=False).metadata_props)
    path = tmp_path / "layer.onnx"
    onnx.save(model, str(path))
    (cost,) = count_layers(path, read_spec(path), {"x": np.zeros(data, np.float32)}, stage=None)
    assert cost.operations == 2 * expected
