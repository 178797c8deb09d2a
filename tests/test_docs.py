"""The pages do what they say: what they show runs as printed, what they name is there, what they quote is said.

What pages name and quote is looked up with the suite; `make docs-tests` runs what they show (marker `docs`).
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from functools import cache
from pathlib import Path

import click
import pytest
from benchmark_cases import make_benchmark
from doc_pages import (
    ROOT,
    commands_of,
    find_missing,
    has_commands,
    lay_out,
    pages,
    read_blocks,
    read_prose,
    run_page,
)

from roiline.cli import main
from roiline.report.benchmark.document import make_report

DOCS = ROOT / "docs"
ROOMS = ("checks", "commands", "core", "engines", "export", "infer", "ops", "report")

STAND_INS = {
    "README.md": {
        "e2e_faster_rcnn_R-50-FPN_1x.yaml": "examples/digits/digits.yaml",
        "model_final.pkl": "examples/digits/digits.pkl",
        "instances_val2017.json": "examples/digits/annotations.json",
        "val2017": "examples/digits/pictures",
        "street.jpg": "examples/digits/pictures/digits_000.jpg",
        "crossing.jpg": "examples/digits/pictures/digits_001.jpg",
    }
}
"""What the reader's own files are in a test, page by page."""

NEEDED = {"extending.md": "g++", "engines.md": "g++"}
"""What pages run beside this project's own command."""


@pytest.mark.docs
@pytest.mark.parametrize("page", [page for page in pages() if has_commands(page)], ids=lambda page: page.stem)
def test_what_a_page_shows_runs_as_printed(page, tmp_path):
    if shutil.which("roiline", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("the command roiline is not beside this Python")
    if page.name in NEEDED and shutil.which(NEEDED[page.name]) is None:
        pytest.skip(f"this page wants {NEEDED[page.name]}, which is not on the PATH")
    run_page(page, lay_out(tmp_path, STAND_INS.get(page.name, {}).items()))


def test_lines_of_output_are_looked_for_in_order():
    printed = "24 of 24 pictures in out/drawn\nAP 84.5\ndone\n"
    assert find_missing("..of 24 pictures in ..\ndone\n", printed) is None
    assert find_missing("done\nAP 84.5\n", printed) == "AP 84.5"
    assert find_missing("AP 84\n", printed) == "AP 84"


# --- what pages name -------------------------------------------------------------------------------------------------


def _options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help",
        "-h",
    }


def _all_commands() -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    for name, command in main.commands.items():
        found[name,] = command
        if isinstance(command, click.Group):
            found |= {(name, inner): one for inner, one in command.commands.items()}
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page):
    commands = _all_commands()
    for place, line in commands_of(page):
        words = line.split()[1:]
        if words[0] in ("COMMAND", "--version", "--help"):
            continue
        assert (words[0],) in commands, f"{place}: there is no `{line}`"
        inner = words[0] == "export" and len(words) > 1 and not words[1].startswith("-")
        command = commands[tuple(words[: 2 if inner else 1])]
        given = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        known = _options(command)
        if words == ["export"] or (command is commands["export",]):
            known |= {option for name in commands if name[0] == "export" for option in _options(commands[name])}
        assert given <= known, f"{place}: `{line}` has no {sorted(given - known)}"


FOREIGN = {"gpu.md": {"--shm-size", "--backend"}, "fuzzing.md": {"--reader"}}
"""Options of other programs that pages name without their program."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_options_in_prose_exist(page):
    known = {option for command in _all_commands().values() for option in _options(command)} | {"--version"}
    spans = [span for span in re.findall(r"`([^`]+)`", read_prose(page)) if span.startswith(("--", "roiline "))]
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z0-9-]+)", " ".join(spans)))
    assert named <= known | FOREIGN.get(page.name, set()), sorted(named - known)


def test_every_command_is_described_somewhere():
    named = {line.split()[1] for page in pages() for _, line in commands_of(page) if len(line.split()) > 1}
    assert {name for name, *_ in _all_commands()} <= named


@pytest.mark.parametrize(
    "page", [*pages(), ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page):
    text = read_prose(page)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in _anchors(there), f"{page.name}: {target} has no such heading"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-") for heading in headings}


def test_the_index_lists_every_page():
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert listed == {page.name for page in DOCS.glob("*.md")} - {"index.md"}


def test_the_demo_of_the_readme_is_what_make_demo_runs(monkeypatch, capsys):
    location = ROOT / "examples" / "demo.py"
    spec = importlib.util.spec_from_file_location("demo_of_the_readme", location)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    ran: list[str] = []
    monkeypatch.setattr(
        demo, "run_command", lambda _roiline, *arguments: ran.append(" ".join(["$ roiline", *arguments]))
    )
    monkeypatch.setattr(demo, "describe_outcome", lambda out: "")
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.chdir(ROOT)
    demo.main()
    shown = next(block for block in read_blocks(ROOT / "README.md") if "make demo" in block.text)
    assert [line for line in shown.text.splitlines() if line.startswith("$ roiline")] == ran


# --- what pages quote ------------------------------------------------------------------------------------------------


@cache
def _said_by_the_code() -> str:
    """Returns every text of the code but its docstrings, one a line; what is filled in at run time is `..`."""
    texts: list[str] = []
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    texts.append("".join(one.value if isinstance(one, ast.Constant) else ".." for one in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                    texts.append(node.value)
    return "\n".join(re.sub(r"\s+", " ", text) for text in texts)


def test_messages_that_the_troubleshooting_page_quotes_are_said():
    said = _said_by_the_code()
    quoted = re.findall(r"“([^”]+)”", read_prose(DOCS / "troubleshooting.md"))[1:]
    assert len(quoted) > 30
    missing = [text for text in quoted if not _is_said(text, said)]
    assert not missing


def _is_said(text: str, said: str) -> bool:
    """Says whether one text of the code has the parts of a quotation, in their order, with anything where the quotation has `..`."""
    parts = [part.strip() for part in re.sub(r"\s+", " ", text).split("..")]
    return max(map(len, parts)) >= 10 and re.search(".*".join(map(re.escape, parts)), said) is not None


def test_a_message_that_nothing_says_is_noticed():
    assert not _is_said("this is said nowhere at all", _said_by_the_code())
    assert _is_said("there is no engine named .. ", _said_by_the_code())


def test_pages_name_no_place_of_one_machine():
    for page in pages():
        assert not re.search(r"/(?:tmp|home|root|work)/", page.read_text(encoding="utf-8")), page


def test_every_number_of_a_benchmark_report_is_explained():
    page = (DOCS / "benchmark-reports.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]+)`", read_prose(DOCS / "benchmark-reports.md")))
    named |= {part for name in named for part in re.split(r"[.\[\]]+", name)}
    baseline = make_report(make_benchmark(rounds=2))
    unexplained = _keys(make_report(make_benchmark(), baseline=baseline)) - named
    assert not unexplained, page


def _keys(value: object, *, name: str = "") -> set[str]:
    """Returns the names of a report; those of its tables by engine, package, shape and the like are left out."""
    if isinstance(value, dict):
        free = name in ("versions", "engine", "network_shapes", "gpus")
        inner = set().union(*(_keys(one, name=key) for key, one in value.items()), set())
        return set() if free else {*value} | inner
    if isinstance(value, list):
        return set().union(*(_keys(one, name=name) for one in value), set())
    return set()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_no_page_waits_for_text(page):
    assert not re.search(r"^[A-Z_]{4,}$|TODO|FIXME", read_prose(page), re.MULTILINE)
