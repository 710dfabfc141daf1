"""The commands of README.md and docs/ run, in order, in an empty folder; those that cannot are at least well formed.

They stand in ```sh blocks, and after "$ " in blocks that show what is printed. A comment before a block says what is
done first, `<!-- first: command -->`, or why its commands cannot run here, `<!-- not run: reason -->`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from jobs.options import parser_with
from pipeline.base.errors import PlanError
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = {"comparisons", "design", "economy", "guide", "ledger", "noise", "reconcile"}  # more than some seconds
APART = {"commands"}  # the reference: every example stands alone, with plans and releases of the reader's
BLOCK = re.compile(r"(?P<comment>(?:^<!-- [^\n]* -->\n)*)^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S)
COMMENT = re.compile(r"<!-- (first|not run): ([^\n]*) -->")


@dataclass(frozen=True)
class Block:
    """A block of commands: where it stands, what it runs, and why it does not."""

    where: str
    script: str
    not_run: str | None


def blocks(page: Path, text: str) -> Iterator[Block]:
    """Yield the blocks of a page that hold commands."""
    for block in BLOCK.finditer(text):
        lines = block["body"].splitlines()
        if block["kind"] == "":
            begins = "$ " if any(line.startswith("$ ") for line in lines) else "prdp "
            lines = [line.removeprefix("$ ") for line in lines if line.startswith(begins)]
        if not lines or block["kind"] not in ("", "sh"):
            continue
        said = COMMENT.findall(block["comment"])
        first = [what for kind, what in said if kind == "first"]
        reasons = [what for kind, what in said if kind == "not run"]
        where = f"{page.name}, line {text.count(chr(10), 0, block.start('body')) + 1}"
        yield Block(where, "\n".join([*first, *lines]), reasons[0] if reasons else None)


def run_all(pages: list[Path], folder: Path) -> list[str]:
    """Run the commands of pages in a folder; return what failed, and how."""
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "conf").symlink_to(ROOT / "conf")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "XDG_STATE_HOME": str(folder / "state"), "HOME": str(folder)}
    for block in (block for page in pages for block in blocks(page, page.read_text()) if not block.not_run):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.script],
            cwd=folder / "work",
            env=os.environ | own,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE,
            check=False,
        )
        if done.returncode:
            return [f"{block.where}: exit code {done.returncode}\n{block.script}\n{done.stderr}"]
    return []


def of_page(page: Path) -> object:
    """A page as a parameter."""
    return pytest.param(page, marks=pytest.mark.drill if page.stem in SLOW else (), id=page.name)


@pytest.mark.parametrize("page", [of_page(page) for page in PAGES if page.stem not in APART])
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    assert run_all([page], tmp_path) == []


def calls(script: str) -> Iterator[list[str]]:
    """Yield the words of each call of prdp in a script, without what the shell itself reads."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for ends, group in groupby(words, lambda word: set(word) <= set("|&;<>()")):
            call = list(group)
            if not ends and call[0] in ("prdp", ".venv/bin/prdp"):
                yield call[1:]


def not_parsed(page: Path, text: str) -> list[str]:
    """Return the calls of a page, also those that are not run, that the command line does not take."""
    parser, wrong = parser_with(None), []
    for block in blocks(page, text):
        if "synopsis" in (block.not_run or "") or "part of a command" in (block.not_run or ""):
            continue
        for words in calls(block.script):
            try:
                if words[0] != "--completion":  # it is no command: tests/jobs/test_completion.py calls it
                    parser.parse_args(words)
            except PlanError as error:
                wrong.append(f"{block.where}: {error}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_call_of_a_page_is_one_that_the_command_line_takes(page: Path) -> None:
    assert not_parsed(page, page.read_text()) == []


def test_a_call_that_is_not_taken_is_noticed() -> None:
    text = "<!-- not run: needs a cluster -->\n```sh\ncat a | .venv/bin/prdp verify b \\\n    --kez c > d\n```\n"
    (wrong,) = not_parsed(ROOT / "page.md", text)
    assert "--kez" in wrong


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    """The twin: also in the middle of a block, of a pipe, and where a later page's command alone fails."""
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("```\n$ true\nfalse\n```\n<!-- not run: a twin -->\n```sh\nfalse\n```\n```python\nfalse\n```\n")
    for number, text in enumerate(("```sh\nfalse\ntrue\n```\n", "```\n$ false | true\nx\n```\n")):
        bad.write_text(text)
        assert run_all([good], tmp_path / f"a{number}") == []
        assert "bad.md, line 2: exit code 1" in run_all([good, bad], tmp_path / f"b{number}")[0]
