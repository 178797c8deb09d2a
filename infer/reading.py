"""A worker's reading: the images of its shards in order, read, decoded and prepared by threads ahead of the model.

The main lane asks for the next image and waits for its picture; whenever it asks, the readers get as many further images as may be on
their way. So memory is bounded, and the order is that of the shards, whatever the speed of a disk. Without readers, which is right where
they would share one core with the model, the picture is read when it is asked for, and the system is told early which files come.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from roiline.core.errors import DataError
from roiline.core.spec import ImageRules
from roiline.core.structures import Result, UInt8
from roiline.core.timing import StageClock, Work
from roiline.infer.decoder_words import DecoderWords
from roiline.infer.messages import CutShort, ImageWork, Setup, ShardWork, Started
from roiline.infer.pictures import JPEG_START, CutShortError, decode_picture, prefetch, read_bytes
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import PreparedPicture
from roiline.infer.report_line import HOLD_S, PipeLine
from roiline.infer.shards import Failure

LOG = logging.getLogger("roiline.worker")

ANNOUNCED = 16
"""How many images of a shard are said to be touched at a time, where it is not known that one of them is dangerous."""


@dataclass(slots=True)
class OpenShard:
    """Is a shard in hand: results gather by position until none is missing.

    `taps` are the checksums of the blobs that the writer has written already, `degraded` says what is wrong with pictures that have a
    result all the same. `begun`: the main lane has taken an image of it.
    """

    work: ShardWork
    results: dict[int, Result | Failure] = field(default_factory=dict)
    taps: dict[int, str] = field(default_factory=dict)
    degraded: dict[int, str] = field(default_factory=dict)
    begun: bool = False


class Picture(NamedTuple):
    """Is network input, the seconds that preparing it took, and the picture itself where the predictor needs it."""

    prepared: PreparedPicture
    prepare_s: float
    pixels: UInt8 | None


@dataclass(slots=True)
class Item:
    """Is one image on its way; `closes`: the batch that it joins takes no more after it. `picture` is there once it was read."""

    shard: OpenShard
    image: ImageWork
    closes: bool
    picture: Picture | Failure | None = None

    @property
    def holds(self) -> bool:
        """Says whether nothing may be read before the batch that this image closes is through."""
        return self.closes and self.shard.work.careful


class Reading:
    """Lists the images of the shards that come in, and has them read ahead.

    `add` and `stop` are for whoever takes orders; everything else is the main lane's.
    """

    def __init__(self, setup: Setup, line: PipeLine, open_clock: Callable[[str], StageClock]) -> None:
        self._setup = setup
        self._line = line
        self._open_clock = open_clock
        self._inbox: queue.SimpleQueue[ShardWork | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._ended = False  # the inbox will give no more
        self._listed: Iterator[Item] = iter(())
        self._unlisted = 0  # what `_listed` will give yet
        self._on_their_way: deque[Item] = deque()
        self._unread: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._words = DecoderWords()
        self._awaited: Item | None = None
        # The count of pictures that were waited for. Nobody reads it: each change of it is an event.
        self._event = os.eventfd(0)
        self._events = select.epoll()
        self._events.register(self._event, select.EPOLLIN | select.EPOLLET)
        self._readers: list[threading.Thread] = []

    # -- orders ------------------------------------------------------------------------------------------------------------------

    def add(self, work: ShardWork) -> None:
        """Takes a shard in."""
        self._inbox.put(work)

    def stop(self) -> None:
        """Ends the listing after what is on its way; shards that come later, or have come and are not listed yet, are dropped."""
        self._stopping.set()
        self._inbox.put(None)

    @property
    def stopping(self) -> bool:
        """Says whether `stop` was called."""
        return self._stopping.is_set()

    # -- the main lane -----------------------------------------------------------------------------------------------------------

    def start(self, predictor: Predictor, rules: ImageRules) -> None:
        """Starts the readers, which prepare pictures by `rules`, as the predictor does it."""
        self._predictor, self._rules = predictor, rules
        self._clock = self._open_clock("reader-0")
        self._readers = [
            self._line.guard(f"reader-{n}", partial(self._read_items, n)) for n in range(self._setup.readers)
        ]

    def close(self) -> None:
        """Ends the readers."""
        for _ in self._readers:
            self._unread.put(None)
        for reader in self._readers:
            reader.join()
        self._events.close()
        os.close(self._event)

    def take_next(self) -> Item | None:
        """Returns the next image, waiting for a shard where there is none; None at the end."""
        self._send_ahead()
        return self._on_their_way.popleft() if self._on_their_way else None

    def take_picture(self, item: Item) -> Picture | Failure:
        """Waits for a picture and takes it; reports that were held back do not wait with it.

        Either the reader sees that it is waited for, or it has laid the picture down before this looks. An event is waited for and not a
        lock: who opens a lock holds the interpreter, which the one that wakes up would have to wait for once more.
        """
        if not self._readers:
            return self._read(item.shard, item.image, self._clock)
        self._awaited = item
        while item.picture is None:
            if not self._events.poll(HOLD_S) and item.picture is None:
                self._line.flush()
                self._events.poll()
        picture, item.picture = item.picture, None
        return picture

    @property
    def none_to_come(self) -> bool:
        """Says whether there is no image to take without waiting for another shard."""
        listed = self._on_their_way or self._unlisted
        return not listed and (self.stopping or self._inbox.empty())

    def _send_ahead(self) -> None:
        """Gives the readers images until as many are on their way as may be; waits for a shard only where none is."""
        way = self._on_their_way
        while len(way) < self._setup.read_ahead and not (way and way[-1].holds):
            item = next(self._listed, None)
            if item is not None:
                self._unlisted -= 1
                way.append(item)
                if self._readers:
                    self._unread.put(item)
                elif item.image.position not in item.shard.work.skip:
                    prefetch(item.image.path)
            elif (work := self._next_shard(wait=not way)) is not None:
                self._unlisted = len(work.images)
                self._listed = self._list(work)
            else:
                return

    def _next_shard(self, *, wait: bool) -> ShardWork | None:
        while not self._ended and (wait or not self._inbox.empty()):
            work = self._inbox.get()
            if work is None:
                self._ended = True
            elif not self.stopping:
                return work
        return None

    def _list(self, work: ShardWork) -> Iterator[Item]:
        """Gives the images of a shard, each announced before it is touched; only careful and padded batches are fixed beforehand."""
        shard = OpenShard(work)
        padded = self._setup.batch_mode == "padded"
        size = self._setup.batch_size if padded else 1
        last = len(work.images) - 1
        fixed = padded or work.careful
        announced = 1 if work.careful else ANNOUNCED
        for place, image in enumerate(work.images):
            if place % announced == 0:
                touched = (one.position for one in work.images[place : place + announced])
                self._line.announce([Started(work.key, position) for position in touched if position not in work.skip])
            yield Item(shard, image, fixed and ((place + 1) % size == 0 or place == last))

    # -- readers -----------------------------------------------------------------------------------------------------------------

    def _read_items(self, reader: int) -> None:
        clock = self._open_clock(f"reader-{reader}")
        while (item := self._unread.get()) is not None:
            item.picture = self._read(item.shard, item.image, clock)
            if self._awaited is item:
                os.eventfd_write(self._event, 1)

    def _read(self, shard: OpenShard, image: ImageWork, clock: StageClock) -> Picture | Failure:
        """Makes network input of one image; what is wrong with the picture becomes a failure, anything else ends the worker."""
        if image.position in shard.work.skip:
            return Failure(image.image_id, shard.work.skip[image.position])
        subject = Work(shard.work.key, (image.image_id,))
        try:
            with clock.measure("read", subject):
                data = read_bytes(image.path)
            with clock.measure("decode", subject):
                pixels = self._decode(data, shard, image)
            start = time.perf_counter()
            prepared = self._predictor.prepare(pixels, self._rules)
            seconds = time.perf_counter() - start
            clock.add("prepare", seconds, start_s=start, work=subject)
            return Picture(prepared, seconds, pixels if self._predictor.needs_pictures else None)
        except DataError as error:
            return Failure(image.image_id, str(error))

    def _decode(self, data: bytes, shard: OpenShard, image: ImageWork) -> UInt8:
        """Decodes a picture; what becomes of one that is cut short is the run's choice, one that is damaged inside is marked.

        Raises:
            DataError: it cannot be decoded, or is cut short and fails for that.
        """
        setup = self._setup
        decode = partial(
            decode_picture,
            data,
            where=image.path,
            exif=setup.exif,
            size_hw=image.size_hw,
            max_pixels=setup.max_pixels,
        )
        try:
            pixels, words = self._words.listen(decode) if data.startswith(JPEG_START) else (decode(), None)
            fault = None if words is None else f"{image.path}: damaged inside, the decoder says: {words}"
        except CutShortError as error:
            if setup.truncated == "stop":
                self._line.send(CutShort(str(error)))
            if setup.truncated != "accept":
                raise
            pixels, _ = self._words.listen(partial(decode, tolerant=True))
            fault = str(error)
        if fault is not None:
            shard.degraded[image.position] = fault
            LOG.warning("%s; used as far as it goes", fault)
        return pixels
