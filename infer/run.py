"""A dataset run from request to result files: open the pool, read the dataset, plan, resume, work, merge.

The workers open the model before the dataset is read, so that a wrong model, engine or device says so in seconds. What is finished is
what lies in `shards/`; everything else in an OUT folder is made from that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType

from roiline.core.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_SOME_FAILED, ModelError, UsageError, WorkerError
from roiline.core.files import FolderLock, make_folder, remove_temporaries, write_json
from roiline.core.spec import ModelSpec
from roiline.engines.model_file import read_spec
from roiline.engines.registry import resolve_engine
from roiline.infer.cluster_transport import open_transport
from roiline.infer.dataset_run import (
    DatasetRun,
    clear_outputs,
    digest_models,
    load_datasets,
    prepare_dataset_run,
    resolve_exif,
)
from roiline.infer.gpu_memory import check_free_memory
from roiline.infer.gpu_monitor import GpuMonitor
from roiline.infer.manifest import RUN_FILE, SHARDS_FOLDER, TIMING_FILE, read_manifest, write_manifest
from roiline.infer.merge import FailedImage, MergedResults
from roiline.infer.messages import Finished, Setup
from roiline.infer.outputs import (
    choose_formats,
    outputs_stand,
    remove_stale_results,
    result_paths,
    write_failures,
    write_outputs,
)
from roiline.infer.pictures import MOST_PIXELS
from roiline.infer.plan import Shard
from roiline.infer.pool import Pool
from roiline.infer.progress import DatasetProgress, RunProgress
from roiline.infer.request import LARGEST_BATCH, LONGEST_TIMEOUT_S, RunRequest, RunSummary, check_overrides
from roiline.infer.run_proposals import check_companions
from roiline.infer.shards import TAPS_SUFFIX, ShardFile, set_aside_shard, shard_path
from roiline.infer.taps import link_taps
from roiline.infer.trace import TRACE_FILE, TraceWindow, write_trace

LOG = logging.getLogger("roiline.run")

_MOST_READERS = 8
_HELD_SHARDS = 3
_HELD_BATCHES = 3


def run_dataset(request: RunRequest, *, progress: bool = True) -> RunSummary:
    """Runs a model over one or several datasets, or goes on with such a run.

    The exit code in the answer is 0, 4 (some images failed) or 130 (interrupted).

    Raises:
        UsageError: options do not fit together, or OUT holds another run or is in use.
        InputError: the model or a dataset cannot be used.
        EngineError: an engine cannot be opened, or no worker could go on.
    """
    began = time.perf_counter()
    request = complete_request(request)
    spec = read_fitting_spec(request)
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_interrupted())
        stack.enter_context(FolderLock(request.out))
        setup = worker_setup(request, spec)
        start = stack.enter_context(open_transport(request))
        pool = stack.enter_context(Pool(request.slots, setup, image_timeout_s=request.image_timeout_s, start=start))
        run = _Run(request, spec, pool, shown=progress)
        try:
            return run.execute(began)
        except KeyboardInterrupt:
            LOG.warning("interrupted: finished shards are kept; run the same command again to go on")
            return RunSummary(EXIT_INTERRUPTED, 0, 0, ())


def complete_request(request: RunRequest) -> RunRequest:
    """Returns the request with its formats chosen; a model that classifies whole pictures does that where detections are asked for.

    Raises:
        UsageError: a format, the batch size, the data or the devices cannot be meant.
        ModelError: the model cannot be read.
    """
    if not request.data:
        raise UsageError("no dataset: name at least one DATA")
    if not request.slots:
        raise UsageError("no device to run on")
    if not 1 <= request.batch_size <= LARGEST_BATCH:
        raise UsageError(f"--batch-size: expected at least 1 and at most {LARGEST_BATCH}, got {request.batch_size}")
    if not 0 <= request.image_timeout_s <= LONGEST_TIMEOUT_S:
        raise UsageError(
            f"--image-timeout: expected seconds from 0 (none) to {LONGEST_TIMEOUT_S:g}, got {request.image_timeout_s}"
        )
    if not 1 <= request.max_pixels <= MOST_PIXELS:
        raise UsageError(f"--max-pixels: expected at least 1 and at most {MOST_PIXELS}, got {request.max_pixels}")
    task = request.task
    if task == "detections" and read_spec(request.model).tasks == ("classification",):
        task = "classification"
    return replace(request, task=task, formats=choose_formats(task, request.formats))


def read_fitting_spec(request: RunRequest) -> ModelSpec:
    """Reads the model's specification.

    Raises:
        ModelError: the model cannot be read, or cannot do the task.
        UsageError: the proposals or models that it is to work with, or settings to override, do not fit it.
    """
    spec = read_spec(request.model)
    if request.task not in spec.tasks:
        raise ModelError(f"{request.model}: makes {', '.join(spec.tasks)}, not {request.task}")
    check_companions(request, spec)
    check_overrides(request.overrides)
    _check_thresholds(request, spec)
    return spec


def _check_thresholds(request: RunRequest, spec: ModelSpec) -> None:
    """Checks that the thresholds to override are there.

    Raises:
        UsageError: the model makes no detections that a threshold could hold for.
    """
    asked = request.overrides
    thresholds = {"--score-thresh": asked.score_thresh, "--nms": asked.nms_thresh, "--max-dets": asked.max_dets}
    given = [option for option, value in thresholds.items() if value is not None]
    if given and spec.detection is None:
        raise UsageError(
            f"{request.model}: this model makes {' and '.join(spec.tasks)}; {', '.join(given)} is for detections"
        )


def worker_setup(request: RunRequest, spec: ModelSpec) -> Setup:
    """Returns what every worker is told first; each gets its own device later."""
    if request.cluster is None:
        cores = len(os.sched_getaffinity(0)) // len(request.slots)
    else:
        cores = min(slot.device.threads for slot in request.slots)
    shared = cores <= 1 and request.slots[0].device.kind == "cpu"
    readers = 0 if shared else min(_MOST_READERS, max(1, cores))
    return Setup(
        python_path=tuple(sys.path),
        predictor=request.predictor,
        model=request.model,
        task=request.task,
        device=request.slots[0].device,
        engine=request.engine,
        overrides=request.overrides,
        exif=resolve_exif(request, spec),
        batch_size=request.batch_size,
        batch_mode=request.batch_mode,
        readers=readers,
        read_ahead=2 * request.batch_size + readers,
        companions=request.companions,
        traced=request.traced,
        max_pixels=request.max_pixels,
        truncated=request.truncated,
    )


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Makes SIGTERM what SIGINT is, an interrupt that cleans up; only the main thread may, elsewhere it stays as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Run:
    """Carries one request through; the pool is opened at once, unless everything seems to be done already."""

    def __init__(self, request: RunRequest, spec: ModelSpec, pool: Pool, *, shown: bool) -> None:
        self._request = request
        self._spec = spec
        self._pool = pool
        self._shown = shown
        self._phases: dict[str, float] = {}
        self._last = 0.0

    def execute(self, began: float) -> RunSummary:
        """Does everything, and returns how it ended."""
        self._last = began
        if not _seems_finished(self._request):
            self._open_pool()
        runs = self._prepare()
        left = [(run, shard) for run in runs for shard in run.shards_left]
        if left and not self._pool.descriptions:
            self._open_pool()
        self._start_manifests(runs)
        self._end_phase("plan_s")
        started = time.perf_counter()
        here = left and self._request.cluster is None
        with GpuMonitor(self._request.slots if here else ()) as monitor:
            if left:
                self._work_off(runs, left)
        self._end_phase("work_s")
        self._pool.close()
        images = _collect_done(left)
        summaries = [self._conclude(run) for run in runs]
        self._end_phase("merge_s")
        if left:
            self._write_timing(images, monitor.report())
            self._write_trace(started)
            LOG.info("Total inference time: %.3fs", time.perf_counter() - began)
        return _join_summaries(summaries, interrupted=any(run.shards_left for run in runs))

    def _open_pool(self) -> None:
        """Starts the workers, once the GPUs are known to have room for the models; on a cluster every machine looks for itself."""
        if self._request.cluster is None:
            check_free_memory(self._request.slots, self._request.models)
        self._pool.open()
        self._end_phase("open_s")

    def _end_phase(self, name: str) -> None:
        now = time.perf_counter()
        self._phases[name] = self._phases.get(name, 0.0) + now - self._last
        self._last = now

    def _prepare(self) -> list[DatasetRun]:
        """Loads and plans every dataset."""
        request = self._request
        engine = resolve_engine(request.engine, request.model)
        digests = digest_models(request)
        runs = [
            prepare_dataset_run(request, self._spec, out, dataset, data=data, engine=engine, digests=digests)
            for data, (out, dataset) in zip(request.data, load_datasets(request, self._spec), strict=True)
        ]
        for run in runs:
            for problem in run.dataset.problems:
                LOG.warning("%s: %s", run.dataset.name, problem)
        return runs

    def _start_manifests(self, runs: Sequence[DatasetRun]) -> None:
        """Writes run.json of the runs that have something to do, before anything else is written beside it."""
        for run in runs:
            if run.out.is_dir():
                remove_temporaries(run.out)
            if self._request.fresh:
                clear_outputs(run.out, run.manifest)
            for index, problem in run.bad.items():
                LOG.warning("%s; its images are computed again", problem)
                set_aside_shard(run.out / SHARDS_FOLDER, index)
            run.worked = bool(run.shards_left)
            if not run.worked:
                continue
            make_folder(run.out / SHARDS_FOLDER)
            for folder in (run.out / SHARDS_FOLDER, *(run.out / SHARDS_FOLDER).glob(f"*{TAPS_SUFFIX}")):
                remove_temporaries(folder)
            run.manifest = replace(
                run.manifest,
                files={} if run.before is None else run.before.files,
                workers=tuple(
                    {"device": slot.label, **self._pool.descriptions.get(number, {})}
                    for number, slot in enumerate(self._request.slots)
                ),
            )
            write_manifest(run.out, run.manifest)

    def _work_off(self, runs: Sequence[DatasetRun], left: Sequence[tuple[DatasetRun, Shard]]) -> None:
        """Runs the pool over all shards that are left, as far as it gets."""
        works = {key: run.shard_work(shard, key) for key, (run, shard) in enumerate(left)}
        watch = _Watch(runs, left, shown=self._shown)
        try:
            self._pool.run(works, watch, depth=_HELD_SHARDS, ahead=_HELD_BATCHES * self._request.batch_size)
        except (WorkerError, KeyboardInterrupt) as error:
            self._pool.close()  # from here on nobody writes
            for run in runs:
                remove_temporaries(run.out / SHARDS_FOLDER)
            if isinstance(error, WorkerError):
                # Where no worker lives, the images at fault are not known: those that were blamed are tried again the next time.
                for key in self._pool.set_aside:
                    works[key].path.unlink(missing_ok=True)
            raise
        watch.finish()

    def _conclude(self, run: DatasetRun) -> RunSummary:
        """Writes what follows from the shards; nothing if it stands there already."""
        if run.shards_left:
            write_failures(run.out, *_faults_so_far(run))
            LOG.warning(
                "%s: %d of %d images are done; run the same command again to go on",
                run.out,
                run.images_done,
                len(run.entries),
            )
            return RunSummary(EXIT_INTERRUPTED, run.images_done, 0, ())
        formats = self._request.formats
        paths = result_paths(run.out, run.manifest, formats)
        ids = [entry.image_id for entry in run.entries]
        results = MergedResults([(0, list(run.done.values()))], images=len(run.entries), image_ids=ids)
        link_taps(run.out, results.taps())
        before = run.before
        if before is None or run.worked or not before.finished:
            if before is not None:
                remove_stale_results(run.out, before, but=paths)
            manifest = replace(run.manifest, files={}, notes=tuple(self._pool.notes))
            write_outputs(run.out, manifest, results, formats)
        elif not (before.named_range == run.manifest.named_range and outputs_stand(run.out, before, paths)):
            manifest = replace(before, named_range=run.manifest.named_range, request=run.manifest.request)
            write_outputs(run.out, manifest, results, formats)
        code = EXIT_SOME_FAILED if results.failed else EXIT_DONE
        return RunSummary(code, len(results), len(results.failed), paths, len(results.degraded))

    def _write_timing(self, images: int, gpus: Mapping[str, object]) -> None:
        devices = {number: slot.label for number, slot in enumerate(self._request.slots)}
        report = self._pool.ledger.report(wall_s=self._phases["work_s"], images=images, devices=devices)
        write_json(self._request.out / TIMING_FILE, {**report, **gpus, "phases": self._phases})

    def _write_trace(self, started: float) -> None:
        """Writes when every lane was busy or waiting, where that was asked for; `started` is when the work began."""
        if self._request.traced:
            devices = {number: slot.label for number, slot in enumerate(self._request.slots)}
            window = TraceWindow(started, started + self._phases["work_s"])
            write_trace(self._request.out / TRACE_FILE, self._pool.ledger.spans, devices=devices, window=window)


class _Watch:
    """Turns what the pool reports into progress."""

    def __init__(self, runs: Sequence[DatasetRun], left: Sequence[tuple[DatasetRun, Shard]], *, shown: bool) -> None:
        counts = {id(run): _dataset_progress(run) for run in runs}
        self._counts = [counts[id(run)] for run, _ in left]
        self._seen: dict[int, set[int]] = {}
        self._progress = RunProgress(
            sum(len(run.entries) for run in runs), sum(run.images_done for run in runs), shown=shown
        )

    def image_finished(self, report: Finished) -> None:
        """Counts an image, once even if its shard is done again."""
        seen = self._seen.setdefault(report.key, set())
        if report.position in seen:
            return
        seen.add(report.position)
        self._progress.count(failed=report.failure is not None)
        self._counts[report.key].finish_image(report.detect_s, report.misc_s, images_per_s=self._progress.images_per_s)
        self._progress.show()

    def shard_done(self, key: int) -> None:
        """Forgets the images of a shard that will not be done again."""
        self._seen.pop(key, None)

    def tick(self) -> None:
        """Shows the state if it is due."""
        self._progress.show()

    def finish(self) -> None:
        """Shows the last state."""
        self._progress.show(last=True)


def _dataset_progress(run: DatasetRun) -> DatasetProgress:
    settings = run.manifest.settings
    start, end = settings.id_range
    return DatasetProgress(settings.task, start, end, run.dataset.total, done=run.images_done)


def _seems_finished(request: RunRequest) -> bool:
    """Whether run.json of every dataset says that it is finished; whether that is true is seen when the dataset is read."""
    if request.fresh:
        return False
    folders = [request.out] if len(request.data) == 1 else [path.parent for path in request.out.glob(f"*/{RUN_FILE}")]
    manifests = [read_manifest(folder) for folder in folders]
    return len(manifests) == len(request.data) and all(m is not None and m.finished for m in manifests)


def _collect_done(left: Sequence[tuple[DatasetRun, Shard]]) -> int:
    """Notes which shards have come to the disk; returns how many images they have."""
    images = 0
    for run, shard in left:
        path = shard_path(run.out / SHARDS_FOLDER, shard.index)
        if path.exists():
            run.done[shard.index] = ShardFile(path)
            images += len(shard.positions)
    return images


def _faults_so_far(run: DatasetRun) -> tuple[list[FailedImage], list[FailedImage]]:
    """Returns the images that failed, and those whose pictures are not whole."""
    images = [image for shard in run.done.values() for image in shard.header.images]
    images.sort(key=lambda image: image.position)
    return (
        [FailedImage(image.image_id, image.failure) for image in images if image.failure is not None],
        [FailedImage(image.image_id, image.degraded) for image in images if image.degraded is not None],
    )


def _join_summaries(summaries: Sequence[RunSummary], *, interrupted: bool) -> RunSummary:
    failed = sum(summary.failed for summary in summaries)
    code = EXIT_INTERRUPTED if interrupted else EXIT_SOME_FAILED if failed else EXIT_DONE
    return RunSummary(
        code,
        sum(summary.images for summary in summaries),
        failed,
        tuple(p for summary in summaries for p in summary.files),
        sum(summary.degraded for summary in summaries),
    )
