from __future__ import annotations

import json
import sys
import zipfile
from argparse import Namespace

import numpy as np
import pytest
from torchvision_states import write_safetensors

from roiline.core.errors import UsageError, WeightError
from roiline.export.checkpoints import read_checkpoint

TENSORS = {
    "backbone.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([0.5, -2.0], np.float16),
    "double": np.array([1 / 3]),
    "counter": np.array(7, np.int64),
    "empty": np.zeros((0, 4), np.float32),
}


def test_floating_tensors_become_float32_and_others_stay(tmp_path):
    read = read_checkpoint(write_safetensors(tmp_path / "w.safetensors", TENSORS))
    assert list(read.tensors) == list(TENSORS)
    for name, array in TENSORS.items():
        expected = np.int64 if name == "counter" else np.float32
        assert read.tensors[name].dtype == expected
        np.testing.assert_array_equal(read.tensors[name], array.astype(expected))
    assert len(read.sha256) == 64
    assert read.notes == ()


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    values = np.array([1.0, -3.5, 2.0**100], np.float32)
    data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    head = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    path = tmp_path / "w.pth"  # what a file is, is said by its content
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)
    np.testing.assert_array_equal(read_checkpoint(path).tensors["x"], values)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_dropped(tmp_path, prefix):
    wrapped = {f"{prefix}{name}": array for name, array in TENSORS.items()}
    read = read_checkpoint(write_safetensors(tmp_path / "w.safetensors", wrapped))
    assert set(read.tensors) == set(TENSORS)
    assert len(read.notes) == prefix.count(".")


def test_a_prefix_that_only_some_names_have_stays(tmp_path):
    mixed = {"module.a": TENSORS["half"], "b": TENSORS["half"]}
    assert set(read_checkpoint(write_safetensors(tmp_path / "w.safetensors", mixed)).tensors) == set(mixed)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "does not fit"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "does not fit"),
        ({"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}, "does not fit"),
        ({"dtype": [], "shape": [2], "data_offsets": [0, 8]}, r"the type \[\] is not read"),
        ({"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}, "is no shape of a tensor"),
        ({"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}, "does not fit"),
        ({"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}, "is no shape of a tensor"),
        ({"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}, "does not fit"),
        ({"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}, "F8_E4M3"),
        ({"dtype": "F32", "shape": [2]}, "no dtype, shape and data_offsets"),
        ([], "no dtype, shape and data_offsets"),
    ],
)
def test_damaged_entries_are_named(tmp_path, entry, complaint):
    head = json.dumps({"x": entry}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(8))
    with pytest.raises(WeightError, match=complaint):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!DOCTYPE html><html></html>", "HTML"),
        (b"\x89PNG\r\n\x1a\n" + bytes(30), "PNG"),
        ((20).to_bytes(8, "little") + b'{"x": {"dtype": "F32', "not JSON"),
        ((2).to_bytes(8, "little") + b"{}", "no tensors"),
    ],
)
def test_other_files_are_named(tmp_path, content, complaint):
    path = tmp_path / "w.pth"
    path.write_bytes(content)
    with pytest.raises(WeightError, match=complaint):
        read_checkpoint(path)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(WeightError, match="no such file"):
        read_checkpoint(tmp_path / "w.pth")


# --- with torch ------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="a .pth is opened through torch")


@pytest.mark.torch
@pytest.mark.parametrize("key", [None, "model", "state_dict", "model_state_dict"])
def test_a_state_dict_is_found_where_it_is(tmp_path, torch, key):
    state = {name: torch.from_numpy(array) for name, array in TENSORS.items()}
    path = tmp_path / "w.pth"
    # torchvision's own training script keeps its options beside the weights
    torch.save(state if key is None else {key: state, "args": Namespace(epochs=3), "epoch": 2}, path)
    read = read_checkpoint(path)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(read.tensors[name], array.astype(read.tensors[name].dtype))
    assert read.notes == (() if key is None else (f"the state dict under {key!r} was taken",))
    assert key is None or read.extras["epoch"] == 2


@pytest.mark.torch
def test_weights_of_an_average_and_in_half_precision(tmp_path, torch):
    state = {"n_averaged": torch.tensor(4), "module.x": torch.tensor([0.5, 3.0], dtype=torch.bfloat16)}
    path = tmp_path / "w.pth"
    torch.save(state, path)
    read = read_checkpoint(path)
    assert list(read.tensors) == ["x"]
    np.testing.assert_array_equal(read.tensors["x"], np.array([0.5, 3.0], np.float32))


@pytest.mark.torch
def test_a_whole_module_is_refused_with_advice(tmp_path, torch):
    path = tmp_path / "module.pth"
    torch.save(torch.nn.Linear(2, 2), path)
    with pytest.raises(WeightError, match=r"torch\.nn\.modules\.linear\.Linear.*state_dict"):
        read_checkpoint(path)


@pytest.mark.torch
def test_a_checkpoint_without_a_state_dict_and_a_damaged_one(tmp_path, torch):
    path = tmp_path / "w.pth"
    torch.save({"epoch": 3, "optimizer": {"lr": 0.1}}, path)
    with pytest.raises(WeightError, match=r"no state dict among its entries \('epoch', 'optimizer'\)"):
        read_checkpoint(path)
    torch.save({"x": torch.zeros(10000)}, path)
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(WeightError, match="damaged"):
        read_checkpoint(path)


def test_a_program_is_refused_with_advice(tmp_path):
    path = tmp_path / "scripted.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("scripted/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("scripted/constants.pkl", b"\x80\x02)q\x00.")
    with pytest.raises(WeightError, match="TorchScript"):
        read_checkpoint(path)


def test_a_pth_without_torch_says_what_to_install(tmp_path, monkeypatch):
    path = tmp_path / "w.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", b"\x80\x02}q\x00.")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match="pip install torch"):
        read_checkpoint(path)
