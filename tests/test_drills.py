"""Drills run in parts, and say what did not pass on these files."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import drills
from tests.faults.__main__ import meant
from tests.faults.shared import WORKERS, Lent
from tests.faults.table import FAULTS
from tests.support.dask_cluster import dask_processes
from tests.support.spark import standalone

PARTS = {"one": ("-c", "print('1 passed')"), "two": ("-c", "raise SystemExit('1 failed')")}


@pytest.mark.xdist_group("one group")
def test_groups_reach_what_hands_the_tests_out(request: pytest.FixtureRequest) -> None:
    """Else every process would make what a module shares, and start a Spark of its own."""
    assert not request.config.getoption("loadgroup", False) or request.node.nodeid.endswith("@one group")


def run(results: Path, *words: str) -> int:
    return drills.main(words, PARTS, results)


def test_every_test_and_every_fault_is_in_a_part() -> None:
    every = drills.parts()
    once = (words for name, words in every.items() if not re.match("attacks-(?!1$)", name))  # the same files
    files = [word for words in once for word in words if Path(word).name.startswith("test_")]
    assert sorted(files) == sorted(
        str(path.relative_to(drills.ROOT)) for path in (drills.ROOT / "tests").rglob("test_*.py")
    )
    assert sorted(
        word for words in every.values() for word in words if word in {each.name for each in FAULTS}
    ) == sorted(each.name for each in FAULTS)


def test_the_shares_of_a_folder_have_each_selected_test_once(tmp_path: Path) -> None:
    some = "[0, *(pytest.param(n, marks=pytest.mark.drill) for n in range(1, 7))]"
    lines = ("import pytest", f"@pytest.mark.parametrize('n', {some})", "def test_a(n): print('ran', n)")
    (tmp_path / "test_a.py").write_text("\n".join(lines))
    ran = []
    for n in range(1, 4):
        words = [*drills.PYTEST[:-2], "-s", drills.SHARE, f"{n}/3", "-c", os.devnull, "--rootdir", tmp_path, tmp_path]
        told = subprocess.check_output([sys.executable, *words], cwd=drills.ROOT, text=True)
        ran.append(re.findall(r"ran (\d)", told))
    assert ran == [["1", "4"], ["2", "5"], ["3", "6"]]


def test_a_part_does_the_faults_that_it_names_and_no_others() -> None:
    parts = [words for name, words in drills.parts().items() if name.startswith("faults-")]
    done = [
        fault.name for _, _, *words in parts for fault in FAULTS if any(meant(word, fault.name) for word in words[1::2])
    ]
    assert sorted(done) == sorted(fault.name for fault in FAULTS)
    assert meant("at sums", "driver killed, at sums, dask cluster")  # a pattern that is no name
    assert not meant("driver killed, at sums, dask", "driver killed, at sums, dask cluster")


@pytest.mark.drill
@pytest.mark.parametrize("started", [dask_processes, standalone])
def test_a_cluster_is_lent_whole_whatever_was_done_to_it(started: Any, tmp_path: Path) -> None:
    with started(tmp_path, WORKERS) as cluster:
        leader, lent = getattr(cluster, "scheduler", None) or cluster.master, Lent(cluster, tmp_path, {}, ExitStack())
        assert lent.mended()
        assert not cluster.whole(WORKERS + 1)
        frozen = leader if started is standalone else cluster.workers[0]
        frozen.send_signal(signal.SIGSTOP)
        assert not cluster.whole(WORKERS)
        assert lent.mended()
        for lost in cluster.workers[:1], list(cluster.workers):
            for worker in lost:
                worker.kill()
                worker.wait()
            assert not cluster.whole(WORKERS)
            assert lent.mended()
        leader.kill()
        leader.wait()
        assert not cluster.whole(WORKERS)
        assert lent.mended() == hasattr(cluster, "master")  # Dask's workers end with their scheduler


def test_a_part_that_failed_or_never_ran_is_said_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "commit", lambda part: "a" * 40)
    monkeypatch.setattr(drills, "same_files", lambda commit, part: commit == "a" * 40)
    results = tmp_path / "drills.json"
    assert run(results, "--status") == 1
    assert "2 of 2 parts did not pass" in capsys.readouterr().out
    assert run(results, "one") == 0
    assert run(results) == 1
    printed = capsys.readouterr().out
    assert printed.count("one: 1 passed") == 1  # passed on these files: not run again
    assert "FAILED" in printed
    assert "1 of 2 parts did not pass" in printed
    assert json.loads(results.read_text())["one"]["summary"] == "1 passed"


def test_what_passed_on_other_files_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills, "commit", lambda part: "a" * 40)
    monkeypatch.setattr(drills, "same_files", lambda commit, part: True)
    assert run(tmp_path / "drills.json", "one") == 0
    monkeypatch.setattr(drills, "same_files", lambda commit, part: False)
    assert run(tmp_path / "drills.json", "--status", "one") == 1


def test_parts_run_at_once_the_longest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drills.os, "cpu_count", lambda: 2)
    meet = "import os, time; open({!r}, 'w')\nassert any(os.path.exists({!r}) or time.sleep(0.01) for _ in range(6000))"
    both = {one: ("-c", meet.format(f"{tmp_path}/{one}", f"{tmp_path}/{other}")) for one, other in ("ab", "ba")}
    drills.main([], both, tmp_path / "drills.json")  # each waits for the other, for a minute at most
    assert {name: each.passed for name, each in drills.read(tmp_path / "drills.json").items()} == {"a": True, "b": True}
    took = {name: drills.Result(True, "", "", "", minutes, "") for name, minutes in (("a", 1), ("b", 3), ("c", 2))}
    assert drills.longest_first("abcd", took) == ["d", "b", "c", "a"]


@pytest.mark.parametrize(
    ("changed", "again", "kept"),
    [
        ("udfs/a.py", {"noise", "numbers", "faults-spark-1", "house", "python-3.12"}, set()),
        ("tests/support/a.py", {"noise", "numbers", "faults-spark-1", "house", "python-3.12"}, set()),
        ("tests/noise/test_a.py", {"noise", "numbers", "house", "python-3.12"}, {"faults-spark-1"}),
        ("tests/faults/a.py", {"faults-spark-1", "house"}, {"noise", "numbers"}),
        ("docs/a.md", {"noise", "numbers", "faults-spark-1", "house"}, set()),
        ("CHANGELOG.md", {"house", "python-3.12"}, {"noise", "numbers", "faults-spark-1"}),
        ("README.md", {"house", "noise", "numbers"}, {"faults-spark-1"}),  # which noise's tests name
        ("tests/test_a.py", {"house", "python-3.12"}, {"noise", "faults-spark-1"}),
        ("tests/conftest.py", {"house", "python-3.12", "noise", "faults-spark-1"}, set()),
        ("tests/drills.json", set(), {"noise", "house", "python-3.12"}),
    ],
)
def test_what_a_part_does_not_read_leaves_it_passed(
    changed: str, again: set[str], kept: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills, "ROOT", tmp_path)
    for name in ("udfs/a.py", "tests/support/a.py", "tests/noise/test_a.py", "tests/faults/a.py", "docs/a.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a = 1\n")
    (tmp_path / "tests" / "numbers").mkdir()
    (tmp_path / "tests" / "numbers" / "test_b.py").write_text("from tests.noise.test_a import a\n")
    (tmp_path / "tests" / "noise" / "test_c.py").write_text('PAGE = "README.md"\n')
    for name in ("CHANGELOG.md", "README.md", "tests/drills.json", "tests/test_a.py", "tests/conftest.py"):
        (tmp_path / name).write_text("1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / changed).write_text("2\n")
    assert {name for name in again | kept if not drills.same_files("HEAD", name)} == again
    assert {name for name in again | kept if drills.commit(name).endswith("+")} == again


def test_a_mistyped_part_is_refused(tmp_path: Path) -> None:
    assert run(tmp_path / "drills.json", "noize") == 2
    assert run(tmp_path / "drills.json", "on") == 2


def test_a_name_means_all_its_shares(tmp_path: Path) -> None:
    shares = dict.fromkeys(("one-1", "one-two-1", "ones"), PARTS["one"])
    drills.main(["one"], shares, tmp_path / "drills.json")
    assert set(drills.read(tmp_path / "drills.json")) == {"one-1", "one-two-1"}
