from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_support import make_spec, write_model

from roiline.core.errors import EngineError, ModelError
from roiline.engines.protocol import Device, Engine, Stage, Tensor
from roiline.engines.registry import open_engine


def make_feeds(count: int, *, seed: int = 0, pad: int = 0) -> dict[str, Tensor]:
    """`count` pictures of 32 x 48 at scale 1, with `pad` more columns of zeros."""
    random = np.random.default_rng(seed)
    data = random.normal(size=(count, 3, 32, 48)).astype(np.float32)
    info = np.tile(np.float32([32, 48 + pad, 1]), (count, 1))
    size = np.tile(np.float32([32, 48]), (count, 1))
    return {"data": np.pad(data, ((0, 0), (0, 0), (0, 0), (0, pad))), "im_info": info, "im_size": size}


def open_fake(tmp_path: Path, stage: Stage | None = None) -> Engine:
    return open_engine(write_model(tmp_path / "m.onnx"), engine="fake", stage=stage)


def test_outputs_bear_the_names_of_the_stage(tmp_path: Path) -> None:
    with open_fake(tmp_path) as engine:
        assert [info.name for info in engine.outputs] == ["boxes", "scores", "classes", "count"]
        assert engine.description["backend"] == "fake"
        outputs = engine.run(make_feeds(2))
        assert outputs["boxes"].shape == (2, 12, 4)
    with open_fake(tmp_path, Stage(("rpn_boxes", "rpn_scores", "rpn_count"))) as engine:
        assert engine.run(make_feeds(2))["rpn_boxes"].shape == (2, 50, 4)


def test_rows_obey_the_contract(tmp_path: Path) -> None:
    with open_fake(tmp_path) as engine:
        outputs = engine.run(make_feeds(40))
    for boxes, scores, classes, count in zip(*outputs.values(), strict=True):
        assert (boxes >= 0).all()
        assert (boxes <= [47, 31, 47, 31]).all()
        assert (boxes[:, :2] <= boxes[:, 2:]).all()
        assert (np.diff(scores[:count]) <= 0).all()
        assert set(classes[:count]) <= {1, 2, 3}
        assert not boxes[count:].any()
        assert not scores[count:].any()
    assert len(set(outputs["count"].tolist())) > 3


def test_a_result_tells_its_picture_and_nothing_else(tmp_path: Path) -> None:
    with open_fake(tmp_path) as engine:
        together = engine.run(make_feeds(4))
        padded = engine.run(make_feeds(4, pad=16))
        single = [engine.run({k: v[i : i + 1] for k, v in make_feeds(4).items()}) for i in range(4)]
        other = engine.run(make_feeds(4, seed=1))
    for name, values in together.items():
        assert np.array_equal(values, np.concatenate([one[name] for one in single]))
        assert np.array_equal(values, padded[name])
        assert not np.array_equal(values, other[name])


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the fake engine makes proposals or detections"):
        open_fake(tmp_path, Stage(("features",)))
    model = write_model(tmp_path / "m.onnx", make_spec(tasks=("proposals",)))
    with pytest.raises(EngineError, match="runs on the CPU, not on cuda"):
        open_engine(model, engine="fake", device=Device("cuda"))
    with open_engine(model, engine="fake") as engine:
        assert [info.name for info in engine.outputs] == ["rpn_boxes", "rpn_scores", "rpn_count"]
