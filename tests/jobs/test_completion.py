"""Completion as real shells do it: commands, acts, options and choices; what the parser knows and nothing else."""

import shutil
import subprocess
from pathlib import Path

import pytest

from jobs.cli import main
from jobs.commands import COMMANDS

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
    ("prdp", "completion", "z"): {"zsh"},
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scripts")


def script(folder: Path, shell: str, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    at = folder / shell
    at.write_text(capsys.readouterr().out)
    return at


def completed(shell: str, at: Path, *words: str) -> set[str]:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its completion is not tested")
    call = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", str(at), *words],
        "fish": ["fish", "--no-config", "-c", FISH, str(at), *words],
    }[shell]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60, cwd=at.parent)
    assert "rror" not in done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_what_the_parser_knows(shell: str, scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = script(scripts, shell, capsys)
    assert {words: completed(shell, at, *words) for words in CALLS} == CALLS
    assert completed(shell, at, "prdp", "") >= set(COMMANDS)


def test_zsh_reads_what_bash_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, whole = (script(tmp_path, shell, capsys).read_text() for shell in ("bash", "zsh"))
    assert whole.endswith(body)
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: its reading of the script is not tested")
    subprocess.run(["zsh", "-n", tmp_path / "zsh"], check=True, timeout=60)


def test_the_shell_is_one_of_those_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bsh"]) == 2
    assert "nearest known: bash" in capsys.readouterr().err
