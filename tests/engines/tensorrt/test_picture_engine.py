"""Pictures that the device prepares: the real kernel's source, run by g++ in a fake GPU's memory, in front of a fake engine."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from dataclasses import replace

import numpy as np
import pytest
from cuda_fakes import FakeGpu, install_bindings
from operator_forms import need_host_compiler
from run_support import make_spec
from tensorrt_fakes import FakeEngine, expected, make_tensorrt

from roiline.core.errors import EngineError, UsageError
from roiline.core.spec import ImageRules
from roiline.engines.protocol import Device, TensorInfo
from roiline.engines.registry import open_engine
from roiline.engines.tensorrt.passport import Machine, Passport, write_passport
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.trimming import OutputTrim
from roiline.infer.model import open_predictor
from roiline.infer.picture_predictor import PicturePredictor
from roiline.infer.preparation import leave_unprepared, prepare_picture, stack_batch
from roiline.ops.image_preparation import PREPARE_IMAGE
from roiline.ops.kernel_build import compile_host_library

RULES = ImageRules("RGB", (0.5, 0.4, 0.3), (0.2, 0.2, 0.3), 48, 96, "torchvision", 16, "apply", divisor=255.0)
PROFILE = Profile(
    {
        "data": ((1, 3, 32, 32), (2, 3, 48, 64), (4, 3, 96, 96)),
        "im_info": ((1, 3), (2, 3), (4, 3)),
    }
)
TYPES = (np.uint64,) * 6 + (np.int32,) * 9 + (np.uint64,)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU whose kernels the host runs, a TensorRT, and a compiler that leaves sources as they are."""
    need_host_compiler()
    gpu = FakeGpu()
    install_bindings(monkeypatch, gpu)
    libraries = {}

    def compile_source(source, *, compiler):
        path = tmp_path / f"{hashlib.sha256(source.encode()).hexdigest()[:8]}.so"
        compile_host_library(source, path)
        libraries[PREPARE_IMAGE.entry] = ctypes.CDLL(str(path))
        return source

    def execute(name, values):
        converted = [
            ctypes.c_void_p(gpu.view(value, 1).ctypes.data) if kind is np.uint64 else ctypes.c_int32(value)
            for kind, value in zip(gpu.kernels[name], values, strict=True)
        ]
        libraries[name][name](*converted)

    gpu.kernels[PREPARE_IMAGE.entry] = TYPES
    gpu.execute = execute
    engine = FakeEngine(gpu, [{name: (least, most) for name, (least, _, most) in PROFILE.shapes.items()}])
    monkeypatch.setitem(sys.modules, "tensorrt", make_tensorrt(engine))
    monkeypatch.setattr("roiline.engines.tensorrt.backend.find_device_compiler", lambda: "nvrtc")
    monkeypatch.setattr("roiline.engines.tensorrt.backend.compile_ptx", compile_source)
    return engine


def write_plan(folder, rules=RULES, outputs=("boxes", "count", "masks")):
    plan = folder / "m.plan"
    plan.write_bytes(b"a built engine")
    infos = {
        "boxes": TensorInfo("boxes", "float32", (None, None, 4)),
        "count": TensorInfo("count", "int64", (None,)),
        "masks": TensorInfo("masks", "float32", (None, 2, 2)),
    }
    trims = {
        "boxes": OutputTrim("boxes", "padded", "count"),
        "count": OutputTrim("count", "batch"),
        "masks": OutputTrim("masks", "rows", "count"),
    }
    passport = Passport(
        spec=make_spec(images=rules),
        engine_sha256=hashlib.sha256(plan.read_bytes()).hexdigest(),
        engine_bytes=plan.stat().st_size,
        machine=Machine("11.4.0.106", "13.0", "NVIDIA H200", "9.0"),
        version_compatible=False,
        hardware_compatible=False,
        identity={},
        inputs=(TensorInfo("data", "float32", (None, 3, None, None)), TensorInfo("im_info", "float32", (None, 3))),
        outputs=tuple(infos[name] for name in outputs),
        trims=tuple(trims[name] for name in outputs),
        profiles=(PROFILE,),
        plugins={},
        precision=(),
        gates={},
    )
    write_passport(plan, passport)
    return plan


def make_batch(pictures, *, prepare=leave_unprepared):
    batch = stack_batch([prepare(picture, RULES) for picture in pictures], list(range(len(pictures))))
    info = batch.im_info.copy()
    info[:, 2] = np.arange(len(pictures)) + 1  # so many boxes the fake engine gives
    return replace(batch, pictures=tuple(pictures), im_info=info)


def draw(count, height, width, seed=0):
    return [*np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)]


@pytest.mark.parametrize("count", [1, 3])
def test_the_network_is_given_what_the_host_would_prepare(machine, tmp_path, count):
    with open_engine(write_plan(tmp_path), engine="tensorrt-pictures", device=Device("cuda")) as engine:
        assert engine.takes_pictures
        assert engine.description["pictures"] == "prepared on the GPU"
        predictor = PicturePredictor(engine, make_spec(images=RULES), "detections")
        for seed in range(4):
            batch = make_batch(draw(count, 40 + seed, 60, seed))
            answer = engine.collect(predictor.submit(batch))
            prepared = make_batch(batch.pictures, prepare=prepare_picture)
            assert prepared.pixels.shape == batch.pixels.shape
            wanted = expected(prepared.pixels, prepared.im_info)
            for name, array in answer.items():
                np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    assert not machine.gpu.alive


def test_pictures_of_many_sizes_in_two_batches_in_flight(machine, tmp_path):
    with open_engine(write_plan(tmp_path), engine="tensorrt-pictures", device=Device("cuda")) as engine:
        predictor = PicturePredictor(engine, make_spec(images=RULES), "detections")
        batches = [make_batch([*draw(1, 44, 60, seed), *draw(1, 88, 120, seed)]) for seed in range(5)]
        tickets = [predictor.submit(batches[0])]
        for number in range(1, 6):
            if number < 5:
                tickets.append(predictor.submit(batches[number]))
            batch = batches[number - 1]
            wanted = expected(make_batch(batch.pictures, prepare=prepare_picture).pixels, batch.im_info)
            np.testing.assert_array_equal(engine.collect(tickets[number - 1])["boxes"], wanted["boxes"])


def test_a_predictor_is_chosen_by_what_the_engine_takes(machine, tmp_path):
    plan = write_plan(tmp_path)
    for name, needs in (("tensorrt-pictures", True), ("tensorrt", False), ("auto", False)):
        predictor = open_predictor(plan, "detections", Device("cuda"), engine=name)
        assert predictor.needs_pictures == needs
        assert predictor.depth == 2
        assert predictor.usual_hw == (48, 64)
        predictor.close()
    assert not machine.gpu.alive


def test_a_rule_without_a_kernel_is_refused(machine, tmp_path):
    rules = replace(RULES, resize="detectron2")
    with pytest.raises(UsageError, match=r"'detectron2' are prepared on the host.*--engine tensorrt"):
        open_predictor(write_plan(tmp_path, rules), "detections", Device("cuda"), engine="tensorrt-pictures")
    assert not machine.gpu.alive


def test_without_a_compiler_it_is_refused_before_any_picture(machine, tmp_path, monkeypatch):
    def refuse():
        raise EngineError("no compiler for CUDA kernels")

    monkeypatch.setattr("roiline.engines.tensorrt.backend.find_device_compiler", refuse)
    with pytest.raises(EngineError, match="no compiler"):
        open_engine(write_plan(tmp_path), engine="tensorrt-pictures", device=Device("cuda"))
    assert not machine.gpu.alive


def test_other_engines_take_no_pictures(machine, tmp_path):
    with open_engine(write_plan(tmp_path), device=Device("cuda")) as engine:
        assert not engine.takes_pictures
        with pytest.raises(UsageError, match="takes prepared pictures only"):
            engine.submit_pictures([], (32, 32), {})


def test_a_batch_without_pixels_takes_no_memory():
    batch = make_batch(draw(3, 40, 60))
    assert batch.pixels.shape == (3, 3, 48, 80)
    assert not any(batch.pixels.strides)
