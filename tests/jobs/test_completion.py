"""Shells and docs/commands.md know what the parser knows; `python -m tests.jobs.test_completion` writes the page."""

import subprocess
from pathlib import Path

import pytest

from jobs.cli import main, places
from jobs.commands import COMMANDS
from jobs.options import parser_with
from tests.support.needs import program
from tests.support.patience import PATIENCE

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
MARK = "<!-- generated -->\n"
EVERYWHERE = {"--help", "--version", "--json", "--quiet", "--debug", "--log-json"}
BASH = (
    'source "$1"; complete -p prdp >&2; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _prdp;'
    ' printf "%s\\n" "${COMPREPLY[@]}"'
)
FISH = 'source $argv[1]; complete -C "$argv[2..]" | string replace -r "\\t.*" ""'
CALLS = {
    ("prdp", "rel"): {"release"},
    ("prdp", "release", "--eng"): {"--engine"},
    ("prdp", "release", "plan.yaml", "--engine", "s"): {"spark"},
    ("prdp", "ledger", "sh"): {"show"},
    ("prdp", "ledger", "show", "--da"): {"--dataset"},
    ("prdp", "verify", "--da"): set(),
    ("prdp", "--completion", "z"): {"zsh"},
    ("prdp", "ledger", "admin", "rel"): set(),
    ("prdp", "ledger", "admin", "clo"): {"close"},
}


def script(folder: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["--completion", shell]) == 0
    (folder / shell).write_text(capsys.readouterr().out)
    return folder / shell


def completed(shell: str, at: Path, *words: str) -> set[str]:
    call = {
        "bash": ["--norc", "-c", BASH, "bash", str(at), *words],
        "fish": ["--no-config", "-c", FISH, str(at), *words],
    }[shell]
    done = subprocess.run(
        [program(shell), *call], capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=at.parent
    )
    assert "rror" not in done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_what_is_known(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = script(tmp_path, shell, capsys)
    assert {words: completed(shell, at, *words) for words in CALLS} == CALLS
    assert completed(shell, at, "prdp", "") >= set(COMMANDS)


def test_zsh_reads_what_bash_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, whole = (script(tmp_path, shell, capsys).read_text() for shell in ("bash", "zsh"))
    assert whole.endswith(body)
    subprocess.run([program("zsh"), "-n", tmp_path / "zsh"], check=True, timeout=PATIENCE)


def test_the_shell_is_one_of_those_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--completion", "bsh"]) == 2
    assert "nearest known: bash" in capsys.readouterr().err


def options() -> str:
    """Return the options of every command and act but studies, by the commands that take them."""
    commands: dict[tuple[str, str], dict[str, list[str]]] = {}
    for place in places(parser_with(None)):
        family, _, act = place.path.removeprefix("prdp ").rpartition(" ")
        for option in place.options if family != "study" else ():
            name = option.option_strings[-1]
            value = option.metavar or "|".join(map(str, option.choices or ()))
            key = name + f" {value}" * (option.nargs != 0), str(option.help).replace("%%", "%")
            commands.setdefault(key, {}).setdefault(family, []).append(act)
    lists: dict[str, list[str]] = {}
    for (name, meaning), of in commands.items():
        acts = "; ".join(f"{family} {', '.join(of[family])}".lstrip() for family in sorted(of))
        lists.setdefault(acts, []).extend([f"- `{name}`: {meaning}\n"] * (name not in EVERYWHERE))
    return "\n".join(f"**{acts}**\n\n{''.join(rows)}" for acts, rows in lists.items() if rows)


def test_the_page_names_every_option_but_those_of_studies() -> None:
    assert PAGE.read_text().split(MARK)[1] == options()


if __name__ == "__main__":
    before, _, after = PAGE.read_text().split(MARK)
    PAGE.write_text(MARK.join((before, options(), after)))
