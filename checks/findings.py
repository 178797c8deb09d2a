"""What an inspection says of one file or folder, or of weights and a configuration together, as data, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from roiline.core.errors import RoilineError

FORMAT_VERSION = 1
_INDENT = " " * 4


@dataclass(frozen=True, slots=True)
class Inspection:
    """Is what was found: `kind` says what it is, `facts` are plain values, `notes` are harmless, `problems` are what is wrong."""

    path: str
    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return {
            "path": self.path,
            "kind": self.kind,
            "ok": not self.problems,
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "problems": list(self.problems),
        }


class Inspected(NamedTuple):
    """Is an inspection, and what was read for it, where something else may want it."""

    inspection: Inspection
    content: object = None


@dataclass(frozen=True, slots=True)
class InspectionReport:
    """Is what was found of all paths; `pairs` are weights compared with configurations."""

    files: tuple[Inspection, ...]
    pairs: tuple[Inspection, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(one.problems for one in (*self.files, *self.pairs))

    def to_plain(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "ok": self.ok,
            "files": [one.to_plain() for one in self.files],
            "pairs": [one.to_plain() for one in self.pairs],
        }

    def to_text(self) -> str:
        """Returns it for people."""
        return "\n\n".join(_describe(one) for one in (*self.files, *self.pairs))


def failed(path: object, kind: str, error: RoilineError, **facts: Any) -> Inspection:
    """Returns the inspection of what cannot be used at all, for the reason of an error."""
    return Inspection(str(path), kind, facts, problems=(shorten_error(error, path),))


def shorten_error(error: RoilineError, path: object) -> str:
    """Returns an error's text without the path that it begins with."""
    text = str(error)
    rest = text.removeprefix(str(path))
    return (
        rest.lstrip(":, ") if rest[:1] in (":", ",", " ") else text
    )  # else it names another file, whose name begins alike


def _describe(one: Inspection) -> str:
    width = max(map(len, one.facts), default=0)
    lines = [f"{one.path}: {one.kind}"]
    lines += [f"  {name:<{width}}  {_show(value)}" for name, value in one.facts.items()]
    lines += [f"  note: {_hang(note)}" for note in one.notes]
    lines += [f"  wrong: {_hang(problem)}" for problem in one.problems]
    return "\n".join(lines)


def _hang(text: str) -> str:
    return text.replace("\n", "\n" + _INDENT)


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_show(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_show, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
