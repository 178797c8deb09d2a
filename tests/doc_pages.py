"""Reads the project's pages and runs what they show, as a reader would who copies block after block into a terminal.

The first word of a fenced block is its language, the words after it say what the test does with it:

* `run`: it is run (bash, or python as a script), in one folder for the whole page; `exit=N` where it ends with another code than 0;
* `file=NAME`: it is written to that file;
* `output`: its lines stand, in this order, in what the block before printed. `..` in a line stands for any text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600

_FENCE = re.compile(r"^(\s*)```(.*)$")
_ANY_TEXT = ".."


@dataclass(frozen=True, slots=True)
class Block:
    """Is one fenced block of a page: what stands behind its fence, its text, and the line that it begins on."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    def value(self, key: str) -> str | None:
        return next((word.removeprefix(f"{key}=") for word in self.words if word.startswith(f"{key}=")), None)


def pages() -> list[Path]:
    """Returns every page that people are meant to read."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def read_blocks(page: Path) -> list[Block]:
    blocks, lines, opened = [], [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and opened is None:
            opened, lines = (number, fence[2].split()), []
        elif fence and opened is not None:
            start, info = opened
            language, *words = info or [""]
            blocks.append(Block(page, start, language, tuple(words), "\n".join(lines) + "\n"))
            opened = None
        elif opened is not None:
            lines.append(line)
    assert opened is None, f"{page}: the block of line {opened and opened[0]} is not closed"
    return blocks


def read_prose(page: Path) -> str:
    """Returns a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def has_commands(page: Path) -> bool:
    return any("run" in block.words for block in read_blocks(page))


def lay_out(folder: Path, stand_ins: Iterable[tuple[str, str]] = ()) -> Path:
    """Makes `folder` look like a checkout: the demo's files, and some of them under the names that a page has for the reader's own."""
    shutil.copytree(ROOT / "examples" / "digits", folder / "examples" / "digits")
    for name, source in stand_ins:
        (folder / name).symlink_to(folder / source)
    return folder


def run_page(page: Path, folder: Path) -> None:
    """Runs a page's blocks in order and holds what they print and how they end against the page."""
    printed = ""
    for block in read_blocks(page):
        if (name := block.value("file")) is not None:
            (folder / name).write_text(block.text, encoding="utf-8")
        if "run" in block.words:
            printed = _run(block, folder)
        if "output" in block.words:
            missing = find_missing(block.text, printed)
            assert missing is None, f"{block.place}: the line {missing!r} is not (or not there) in:\n{printed}"


def _run(block: Block, folder: Path) -> str:
    commands = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-W", "error", "-c"]}
    assert block.language in commands, f"{block.place}: do not know how to run {block.language}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [*commands[block.language], block.text],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONSAFEPATH": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    printed = done.stdout.decode("utf-8", "replace")
    expected = int(block.value("exit") or 0)
    assert done.returncode == expected, f"{block.place}: exit code {done.returncode}, not {expected}:\n{printed}"
    return printed


def find_missing(expected: str, printed: str) -> str | None:
    """Returns the first expected line that does not stand below the one before it in what was printed."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        if line.strip() in ("", _ANY_TEXT):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.rstrip().split(_ANY_TEXT)))
        if not any(pattern.fullmatch(candidate.rstrip()) for candidate in lines):
            return line
    return None


def commands_of(page: Path) -> Iterator[tuple[str, str]]:
    """Yields (place, command line) for every `roiline ..` of a page: lines of its blocks, and code in its prose beyond a name."""
    for block in read_blocks(page):
        if block.language in ("bash", "console", "sh"):
            joined = re.sub(r"\\\n\s*", " ", block.text)
            for line in joined.splitlines():
                line = re.sub(r"\s+#.*$", "", line)
                for part in re.split(r"&&|\|\||\||;|\$\(", line):
                    words = part.removeprefix("$ ").strip()
                    if re.match(r"(?:[A-Z_]+=\S+ )*roiline\b", words):
                        yield block.place, words[words.index("roiline") :]
    for code in re.findall(r"`([^`\n]+)`", read_prose(page)):
        if code.startswith("roiline ") and len(code.split()) > 1:
            yield page.name, code
