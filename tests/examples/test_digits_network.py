"""The trainer's network follows Detectron's conventions, which is what lets its weights be used as they are."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the trainer's network is written in torch")
pytest.importorskip("torchvision", reason="the trainer's network takes RoIAlign from torchvision")
pytest.importorskip("roiline.examples", reason="a wheel holds no examples")

from roiline.examples import digits_network as network  # noqa: E402 - only importable where torch is

WEIGHTS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.pkl"


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (2, [(-22, -10, 25, 13), (-14, -14, 17, 17), (-10, -22, 13, 25)]),
        (3, [(-40, -20, 47, 27), (-28, -28, 35, 35), (-20, -44, 27, 51)]),
        (5, [(-164, -72, 195, 103), (-112, -112, 143, 143), (-76, -168, 107, 199)]),
        (6, [(-332, -152, 395, 215), (-224, -224, 287, 287), (-148, -328, 211, 391)]),
    ],
)
def test_anchors_are_detectrons(level: int, expected: list[tuple[int, ...]]) -> None:
    np.testing.assert_array_equal(network.generate_cell_anchors(level), expected)


def test_anchor_field_runs_over_x_first() -> None:
    field = network.generate_anchors(3, 2, 3)
    np.testing.assert_array_equal(field[3] - field[0], [8, 0, 8, 0])
    np.testing.assert_array_equal(field[9] - field[0], [0, 8, 0, 8])


def test_decoding_inverts_encoding() -> None:
    boxes = torch.tensor([[10.0, 20.0, 49.0, 79.0], [0.0, 0.0, 7.0, 15.0]])
    targets = torch.tensor([[12.0, 18.0, 60.0, 90.0], [1.0, 1.0, 9.0, 9.0]])
    deltas = network.encode_boxes(boxes, targets, network.BBOX_REG_WEIGHTS)
    decoded = network.decode_boxes(boxes, deltas[:, None], network.BBOX_REG_WEIGHTS)[:, 0]
    torch.testing.assert_close(decoded, targets)


def test_levels_follow_the_canonical_scale() -> None:
    sides = torch.tensor([20.0, 55.0, 56.0, 111.0, 112.0, 224.0, 448.0, 900.0])
    boxes = torch.stack([torch.zeros(8), torch.zeros(8), sides - 1, sides - 1], dim=1)
    assert network.assign_levels(boxes).tolist() == [2, 2, 3, 3, 4, 5, 5, 5]


def test_overlaps_count_both_edge_pixels() -> None:
    first = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    second = torch.tensor([[5.0, 0.0, 14.0, 9.0], [9.0, 9.0, 9.0, 9.0], [10.0, 0.0, 12.0, 9.0]])
    torch.testing.assert_close(network.compute_overlaps(first, second), torch.tensor([[50 / 150, 1 / 100, 0.0]]))


def test_shipped_weights_are_this_network() -> None:
    shipped = pickle.loads(WEIGHTS.read_bytes(), encoding="latin1")["blobs"]
    created = network.create_blobs(torch.Generator().manual_seed(0))
    assert {name: blob.shape for name, blob in shipped.items()} == {n: tuple(b.shape) for n, b in created.items()}
