"""Placement on a cluster and the way to its workers, with a stand-in for Ray and real worker processes."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_tools import gpu_line, install_tool
from ray_fake import FakeRay
from run_support import make_request, result_bytes, write_model, write_pictures

from roiline.core.errors import EngineError, ModelError, UsageError, WorkerError
from roiline.core.timing import Span
from roiline.engines.protocol import Device
from roiline.infer import cluster_actor, cluster_transport
from roiline.infer.cluster import Machine, choose_cluster_slots, connect, list_machines, needed_resources, place_workers
from roiline.infer.cluster_actor import Ended, Place, RemoteWorker
from roiline.infer.cluster_transport import ActorHandle, ActorStarter, open_transport
from roiline.infer.messages import Failing, Finished, Left, Refused, Several, ShardWork, Started
from roiline.infer.python_api import request_from_options
from roiline.infer.request import RunRequest, Slot
from roiline.infer.run import run_dataset, worker_setup
from roiline.infer.transport import start_process

IMAGES = 23


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write_model(folder / "model.onnx")
    write_pictures(folder / "pictures", IMAGES)
    return folder


@pytest.fixture(scope="module")
def reference(root: Path) -> dict[str, bytes]:
    assert run_dataset(make_request(root, root / "reference"), progress=False).exit_code == 0
    return result_bytes(root / "reference")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay({"CPU": 1.0}, {"CPU": 1.0, "memory": 1e9})
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def on_cluster(root: Path, out: Path, **changes: Any) -> RunRequest:
    return make_request(root, out, cluster="auto", slots=choose_cluster_slots("auto", None, None), **changes)


# -- placement -------------------------------------------------------------------------------------------------------------------


def shares(machines: list[tuple[int, int]], cpu_workers: int | None) -> list[tuple[str, int]]:
    placed = place_workers([Machine("m", cpus, gpus) for cpus, gpus in machines], cpu_workers)
    return [(slot.device.kind, slot.device.threads) for slot in placed]


@pytest.mark.parametrize(
    ("machines", "cpu_workers", "expected"),
    [
        ([(64, 8), (64, 8)], None, [("cuda", 8)] * 16),
        ([(64, 8), (20, 4), (32, 0)], None, [("cuda", 5)] * 12),  # machines without a GPU are not used
        ([(2, 4)], None, [("cuda", 0)] * 4),
        ([(16, 0), (32, 0), (0, 0)], None, [("cpu", 16)] * 3),
        ([(16, 0), (40, 0)], None, [("cpu", 16)] * 3),
        ([(16, 0), (40, 0)], 3, [("cpu", 16)] * 3),
        ([(16, 0), (40, 0)], 4, [("cpu", 13)] * 4),
        ([(16, 0), (40, 0)], 1, [("cpu", 40)]),
        ([(64, 8)], 2, [("cpu", 32)] * 2),
        ([(3, 0), (1, 0)], 4, [("cpu", 1)] * 4),
    ],
)
def test_workers_are_a_gpu_each_or_equal_shares_that_fit(
    machines: list[tuple[int, int]], cpu_workers: int | None, expected: list[tuple[str, int]]
) -> None:
    assert shares(machines, cpu_workers) == expected


@pytest.mark.parametrize("cpu_workers", [0, -1, 5])
def test_more_workers_than_cpus_are_refused(cpu_workers: int) -> None:
    with pytest.raises(UsageError, match=r"at least 1 and at most 4 \(the cluster's CPUs\)"):
        shares([(3, 0), (1, 0)], cpu_workers)


def test_a_cluster_with_nothing_to_give_is_refused() -> None:
    with pytest.raises(EngineError, match="no CPU and no GPU to give"):
        shares([(0, 0)], None)


def test_only_machines_that_are_alive_count() -> None:
    ray = FakeRay({"CPU": 4.0, "GPU": 2.0}, {"CPU": 1.0})
    assert list_machines(ray) == (Machine("node0", 4, 2), Machine("node1", 1, 0))


def test_gpus_are_not_chosen_by_number(ray: FakeRay) -> None:
    with pytest.raises(UsageError, match="--gpus 0-1 names GPUs of this machine"):
        choose_cluster_slots("auto", "0-1", None)


def test_a_worker_asks_for_its_share() -> None:
    assert needed_resources(Slot(Device("cuda", 0, 6))) == {"num_cpus": 6, "num_gpus": 1}
    assert needed_resources(Slot(Device("cpu", 0, 3))) == {"num_cpus": 3, "num_gpus": 0}


# -- connecting ------------------------------------------------------------------------------------------------------------------


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"--cluster auto: Ray is not installed .*pip install 'roiline\[ray\]'"):
        request_from_options("model.onnx", "data", "out", task="detections", cluster="auto")


def test_a_cluster_that_does_not_answer_is_named(ray: FakeRay) -> None:
    ray.refuses = ConnectionError("Could not find any running Ray instance.\nmore")
    with pytest.raises(EngineError, match=r"--cluster auto: no Ray cluster answers \(Could not .* instance\.\)"):
        connect("auto")


def test_a_process_stays_with_its_cluster(ray: FakeRay) -> None:
    assert connect("local") is ray
    assert ray.inits[0]["address"] == "local"
    for address in ("auto", "local", "10.0.0.1:6379"):
        assert connect(address) is ray
    assert len(ray.inits) == 1
    with pytest.raises(UsageError, match=r"connected with the cluster at 10\.0\.0\.1:6379 already"):
        connect("10.0.0.2:6379")


def test_without_a_cluster_workers_are_processes_here(root: Path, tmp_path: Path) -> None:
    with open_transport(make_request(root, tmp_path)) as start:
        assert start is start_process


# -- whole runs ------------------------------------------------------------------------------------------------------------------


def test_a_cluster_gives_the_bytes_of_a_local_run(
    root: Path, tmp_path: Path, reference: dict[str, bytes], ray: FakeRay
) -> None:
    assert run_dataset(on_cluster(root, tmp_path, traced=True), progress=False).exit_code == 0
    assert result_bytes(tmp_path).items() >= reference.items()
    assert [(one["num_cpus"], one["num_gpus"]) for one in ray.asked] == [(1, 0)] * 2
    run = json.loads((tmp_path / "run.json").read_text())
    assert [worker["machine"] for worker in run["workers"]] == [os.uname().nodename] * 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    limit = time.monotonic() + 10
    while not all(actor.dead for actor in ray.actors) and time.monotonic() < limit:
        time.sleep(0.01)
    assert all(actor.dead for actor in ray.actors)  # given back


def test_streamed_shards_and_a_death_change_no_byte(
    root: Path, tmp_path: Path, reference: dict[str, bytes], ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_actor, "_sees", lambda place: False)
    places: list[Path] = []
    adapt = RemoteWorker._adapt

    def watch(worker: RemoteWorker, order: Any) -> Any:
        adapted = adapt(worker, order)
        places.extend([adapted.path] if isinstance(adapted, ShardWork) else [])
        return adapted

    monkeypatch.setattr(RemoteWorker, "_adapt", watch)
    request = on_cluster(root, tmp_path, predictor="run_support:open_killed_once")
    assert run_dataset(request, progress=False).exit_code == 0
    assert (root / "killed-once").exists()
    assert result_bytes(tmp_path) == reference
    assert any("killed by SIGKILL" in note for note in json.loads((tmp_path / "run.json").read_text())["notes"])
    assert places
    assert all(path.parent.parent == Path(tempfile.gettempdir()) for path in places)
    assert not any(path.parent.exists() for path in places)


def test_a_worker_on_a_gpu_finds_the_one_that_the_cluster_gave(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", fake := FakeRay({"CPU": 6.0, "GPU": 1.0}))
    install_tool(tmp_path, monkeypatch, [gpu_line(0, "GPU-a"), gpu_line(1, "GPU-b")])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    request = on_cluster(root, tmp_path / "out", predictor="run_support:open_on_gpu")
    assert worker_setup(request, _spec(request)).readers == 6
    assert run_dataset(request, progress=False).exit_code == 0
    assert (fake.asked[0]["num_cpus"], fake.asked[0]["num_gpus"]) == (6, 1)
    worker = json.loads((tmp_path / "out" / "run.json").read_text())["workers"][0]
    assert (worker["mask"], worker["order"]) == ("GPU-b", "PCI_BUS_ID")


def _spec(request: RunRequest) -> Any:
    from roiline.infer.run import read_fitting_spec

    return read_fitting_spec(request)


def test_a_worker_without_a_place_ends_the_start_with_its_reason(
    root: Path, tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.places = 1
    monkeypatch.setattr(cluster_transport, "PLACING_LIMIT_S", 0.3)
    with pytest.raises(WorkerError, match=r"no place for worker 1 \(cluster cpu 1, .*'num_cpus': 1"):
        run_dataset(on_cluster(root, tmp_path), progress=False)


def test_another_version_of_this_package_is_refused(
    root: Path, tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_transport, "metadata", _OldVersion)
    with pytest.raises(EngineError, match=r"has roiline .*, the run is of 0\.0\.1; install the same"):
        run_dataset(on_cluster(root, tmp_path), progress=False)


class _OldVersion:
    @staticmethod
    def version(_package: str) -> str:
        return "0.0.1"


# -- the machine's side ----------------------------------------------------------------------------------------------------------


def make_place(folder: Path, **changes: Any) -> Place:
    sign = folder / "sign"
    sign.write_text("here")
    version = cluster_actor.metadata.version("roiline")
    sleep = "import sys, time; time.sleep(600)"
    place = Place(0, Slot(Device("cpu")), sleep, Path.cwd(), version, {}, sign, "here")
    return replace(place, **changes)


def collect_all(worker: RemoteWorker) -> list[Any]:
    messages: list[Any] = []
    while not (messages and isinstance(messages[-1], Ended)):
        messages += worker.collect(30, 0.0)
    return messages


def test_pictures_that_a_machine_does_not_see_are_its_last_word(tmp_path: Path) -> None:
    worker = RemoteWorker(make_place(tmp_path))
    worker.send(ShardWork(0, 0, tmp_path / "x", "", ()), str(tmp_path / "away.png"))
    failing, ended = collect_all(worker)
    assert isinstance(failing, Failing)
    assert f"does not see the pictures: {tmp_path / 'away.png'}" in failing.reason
    assert "SIGKILL" in ended.how


def test_reports_of_images_are_gathered_until_one_is_urgent(tmp_path: Path) -> None:
    worker = RemoteWorker(make_place(tmp_path))
    for report in (Several((Started(0, 0), Started(0, 1))), Finished(0, 0, None), Started(1, 0)):
        worker._messages.put(report)
    assert worker.collect(30, 0.05) == [Several((Started(0, 1), Finished(0, 0, None), Started(1, 0)))]
    assert worker.collect(0.01, 600) == []
    for report in (Started(0, 1), Left({}), Started(0, 2)):
        worker._messages.put(report)
    assert worker.collect(30, 600) == [Several((Started(0, 1),)), Left({}), Several((Started(0, 2),))]
    worker.end()
    assert len(collect_all(worker)) == 1


def test_a_model_that_is_not_there_or_another_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    for expected in ("no such file here", "is another file here"):
        refused, ended = collect_all(RemoteWorker(make_place(tmp_path, models={model: "0" * 64})))
        assert isinstance(refused, Refused)
        assert refused.kind == ModelError.__name__
        assert expected in refused.text
        assert expected in ended.how
        model.write_bytes(b"x")


def test_a_gpu_that_the_cluster_did_not_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    place = make_place(tmp_path, slot=Slot(Device("cuda"), {}, "cluster gpu 3"))
    refused, _ = collect_all(RemoteWorker(place))
    assert "expected one GPU for cluster gpu 3, the cluster gave CUDA_VISIBLE_DEVICES=''" in refused.text


def test_what_a_killed_machine_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{cluster_actor._SCRATCH_PREFIX}123-0-1"
    left.mkdir()
    (left / "00000001.shard").write_bytes(b"x")
    with cluster_actor._find_room(make_place(tmp_path, sign_text="another")) as room:
        assert room is not None
        assert room.is_dir()
        assert not left.exists()
        with cluster_actor._find_room(make_place(tmp_path, sign_text="another")) as other:
            assert other != room
            assert room.is_dir()  # in use
    assert not room.exists()
    with cluster_actor._find_room(make_place(tmp_path)) as none:
        assert none is None


# -- the pool's side -------------------------------------------------------------------------------------------------------------


def test_the_sign_stands_while_workers_may_start_and_old_ones_go(tmp_path: Path) -> None:
    old = tmp_path / ".cluster-00"
    old.touch()
    with ActorStarter(FakeRay(), tmp_path, ()):
        signs = list(tmp_path.iterdir())
        assert len(signs) == 1
        assert signs != [old]
        assert signs[0].name == f".cluster-{signs[0].read_text()}"
    assert not list(tmp_path.iterdir())


def test_a_handle_is_ready_once_a_report_and_after_the_end_for_good(tmp_path: Path) -> None:
    ray = FakeRay()
    actor = ray.remote()(RemoteWorker).remote(make_place(tmp_path, models={tmp_path / "none": ""}))
    handle = ActorHandle(ray, actor, 4, "a place")
    with selectors.DefaultSelector() as selector, contextlib.closing(handle):
        selector.register(handle.waitable, selectors.EVENT_READ)
        assert selector.select(30)
        assert isinstance(handle.receive(), Refused)
        for _ in range(2):
            assert selector.select(30)
            assert handle.has_report()
            with pytest.raises(EOFError):
                handle.receive()
        assert "no such file here" in (handle.join(30) or "")
        assert handle.name == "cluster worker 4"


def test_an_actor_that_is_killed_is_an_end(tmp_path: Path) -> None:
    ray = FakeRay()
    actor = ray.remote()(RemoteWorker).remote(make_place(tmp_path))
    handle = ActorHandle(ray, actor, 0, "a place")
    assert handle.join(0.05) is None
    actor.kill()
    with pytest.raises(EOFError):
        handle.receive()
    assert "its actor is gone (" in (handle.join(30) or "")
    handle.close()


def test_a_process_is_ended_on_its_machine(tmp_path: Path) -> None:
    ray = FakeRay()
    handle = ActorHandle(ray, ray.remote()(RemoteWorker).remote(make_place(tmp_path)), 0, "a place")
    handle.kill()
    assert "killed by SIGKILL" in (handle.join(30) or "")
    handle.close()


def test_times_are_moved_to_this_machines_clock(tmp_path: Path) -> None:
    ray = FakeRay()
    handle = ActorHandle(ray, ray.remote()(RemoteWorker).remote(make_place(tmp_path)), 0, "a place")
    moved = handle._take(Left({}, {"main": [Span("infer", 10.0, 2.0)]}), -3.0)
    assert moved == Left({}, {"main": [Span("infer", 7.0, 2.0)]})
    handle.kill()
    handle.close()


def test_clocks_of_two_machines_are_compared() -> None:
    handle = object.__new__(ActorHandle)
    clock = SimpleNamespace(remote=lambda: time.perf_counter() + 5.0)
    handle._ray = SimpleNamespace(get=lambda value, timeout=None: value)
    handle._actor = SimpleNamespace(clock=SimpleNamespace(options=lambda **_: clock))
    assert handle._compare_clocks() == pytest.approx(-5.0, abs=1.0)
