"""The README's commands for a checkpoint of each kind, run as printed, with stand-ins under the file names that it has."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from detectron2_cases import build_detectron2_case
from doc_pages import ROOT, read_blocks
from shared_data import shared_path
from torchvision_states import StateMaker, write_safetensors

pytestmark = pytest.mark.golden


def _place_detectron(folder: Path) -> None:
    model = shared_path("models/coco-cc-mask-detectron")
    shutil.copy(model / "coco_cc_mask.yaml", folder / "e2e_mask_rcnn_R-50-FPN_1x.yaml")
    shutil.copy(model / "coco_cc_mask.pkl", folder / "model_final.pkl")


def _place_caffe2(folder: Path) -> None:
    net = shared_path("golden/pb/fpn_tiny_fused")
    shutil.copy(net / "model.pb", folder / "model.pb")
    (folder / "model_init.pb").write_bytes(lzma.decompress((net / "model_init.pb.xz").read_bytes()))
    shutil.copy(ROOT / "examples" / "digits" / "digits.yaml", folder / "e2e_faster_rcnn_R-50-FPN_1x.yaml")


def _place_detectron2(folder: Path) -> None:
    case = build_detectron2_case("mask_R50_FPN_a", folder)
    case.cfg.rename(folder / "mask_rcnn_R_50_FPN_3x.yaml")
    case.weights.rename(folder / "model_final.pkl")


def _place_torchvision(folder: Path) -> None:
    """Writes a thin state dict; it is safetensors inside, which is read by content and wants no torch."""
    maker = StateMaker()
    maker.pyramid(maker.resnet(basic=False))
    maker.two_stage_heads(91)
    maker.mask_head(91)
    tensors = {name: array.astype(np.float32) for name, array in maker.tensors.items()}
    write_safetensors(folder / "maskrcnn_resnet50_fpn.pth", tensors)


PLACES = {
    "detectron": _place_detectron,
    "caffe2": _place_caffe2,
    "detectron2": _place_detectron2,
    "torchvision": _place_torchvision,
}


def _printed_commands() -> tuple[list[str], str]:
    """Returns the README's exports and the command that follows them."""
    (block,) = (one for one in read_blocks(ROOT / "README.md") if "--arch maskrcnn_resnet50_fpn" in one.text)
    *exports, last = (line.removeprefix("$ ") for line in block.text.splitlines())
    return exports, last


def test_every_source_has_a_command():
    exports, _ = _printed_commands()
    assert [line.split()[2] for line in exports] == list(PLACES)


@pytest.mark.parametrize("source", PLACES)
def test_from_a_checkpoint_to_a_picture(source, tmp_path):
    exports, last = _printed_commands()
    PLACES[source](tmp_path)
    shutil.copy(ROOT / "examples" / "digits" / "pictures" / "digits_000.jpg", tmp_path / "street.jpg")
    (export,) = (line for line in exports if line.split()[2] == source)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which("roiline", path=path) is None:
        pytest.skip("the command roiline is not beside this Python")
    for line in (export, last):
        done = subprocess.run(
            ["bash", "-euc", line],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert "1 of 1 pictures in drawn" in done.stdout
