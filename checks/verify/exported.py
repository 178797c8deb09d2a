"""The exported model under test: its tensors between any two seams, fetched by name from an engine, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from roiline.core.errors import ModelError
from roiline.core.spec import ModelSpec
from roiline.engines.model_file import load_model, read_spec
from roiline.engines.protocol import Device, Engine, Stage, Tensor
from roiline.engines.registry import open_engine


class ExportedModel:
    """Holds what a model file says of itself, and the names of its tensors; engines over parts of it are opened and closed as needed."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path = path
        self.spec: ModelSpec = read_spec(path)
        self._device = device
        self._opened: dict[tuple[tuple[str, ...], tuple[str, ...]], Engine] = {}
        graph = load_model(path, weights_beside=False).graph
        self._makers = {name: tuple(node.input) for node in graph.node for name in node.output}
        self._weights = {tensor.name: tensor for tensor in graph.initializer}
        self._named = [name for node in graph.node for name in node.output if not name.startswith(node.name)]

    def seam(self, name: str) -> tuple[str, ...]:
        """Returns the tensors of a seam.

        Raises:
            ModelError: the model has no such seam: it is another kind of network than the checkpoint's.
        """
        found = self.spec.seams.get(name)
        if not found:
            raise ModelError(
                f"{self.path}: model and checkpoint do not match: the network of the configuration has {name}, the model does not; "
                "was it exported from another configuration, or with other --set or --task options?"
            )
        return tuple(found)

    def weight(self, name: str) -> Tensor | None:
        """Returns a parameter that the graph holds, None where it holds none of this name."""
        from onnx import numpy_helper

        found = self._weights.get(name)
        return None if found is None else np.asarray(numpy_helper.to_array(found))

    def names_between(self, inputs: Sequence[str], outputs: Sequence[str]) -> list[str]:
        """Returns the named results that `outputs` need, `inputs` being given, in the order of computation."""
        needed: set[str] = set()
        pending = [name for name in outputs if name in self._makers]
        while pending:
            name = pending.pop()
            if name not in needed and name not in inputs:
                needed.add(name)
                pending.extend(source for source in self._makers[name] if source in self._makers)
        return [name for name in self._named if name in needed]

    def run(self, outputs: Sequence[str], inputs: Sequence[str], feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns tensors of the model, computed from others of it and from its own inputs."""
        key = tuple(outputs), tuple(inputs)
        if key not in self._opened:
            self.close()
            self._opened[key] = open_engine(
                self.path, engine="onnxruntime", device=self._device, stage=Stage(outputs=key[0], inputs=key[1])
            )
        return run_engine(self._opened[key], feeds)

    def close(self) -> None:
        """Gives the engines back."""
        while self._opened:
            self._opened.popitem()[1].close()

    def __enter__(self) -> ExportedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run_engine(engine: Engine, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Runs an engine on those of the feeds that it takes."""
    return engine.run({info.name: feeds[info.name] for info in engine.inputs})


class SlicedTensors:
    """Gives tensors of a part of the model by name, `together` at a time, so that no more of them lie in memory."""

    def __init__(
        self, names: Sequence[str], fetch: Callable[[Sequence[str]], Mapping[str, Tensor]], *, together: int
    ) -> None:
        self._slices = [tuple(names[start : start + together]) for start in range(0, len(names), together)]
        self._place = {name: index for index, part in enumerate(self._slices) for name in part}
        self._fetch = fetch
        self._held: Mapping[str, Tensor] = {}
        self._index = -1

    def get(self, name: str) -> Tensor | None:
        """Returns a tensor, None where it is not one of the names."""
        index = self._place.get(name)
        if index is None:
            return None
        if index != self._index:
            self._held = {}
            self._held, self._index = self._fetch(self._slices[index]), index
        return self._held[name]
