"""Collecting what a configuration asks for and an exporter cannot give, so that all of it is said at once."""

from __future__ import annotations

from collections.abc import Iterable

from roiline.core.errors import ConfigError


class Refusals(list[str]):
    """Collects refusals, each a line with its key and its reason."""

    def add(self, key: str, value: object, reason: str) -> None:
        """Notes that a key's value cannot be exported."""
        shown = "not set" if value in ("", None) else str(value)
        self.append(f"{key}: {shown}; {reason}")

    def add_unknown(self, key: str, value: object, known: Iterable[str]) -> None:
        """Notes that a key names something that is not known."""
        self.add(key, value, f"known: {', '.join(sorted(known))}")

    def raise_if_any(self, source: str) -> None:
        """Ends the export where something was refused.

        Raises:
            ConfigError: lists all refusals.
        """
        if self:
            listing = "\n  ".join(self)
            raise ConfigError(f"{source}: this network cannot be exported:\n  {listing}")
