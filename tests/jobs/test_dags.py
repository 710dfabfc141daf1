"""What the Airflow DAGs decide, without Airflow: their commands, and what the ends of these mean.

tests/jobs/test_airflow.py runs them in a real Airflow, by `make drill`.
"""

import ast
import io
import json
import os
import re
import signal
import sys
import time
from contextlib import redirect_stderr
from dataclasses import fields, replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from jobs.dags import prdp_steps as steps
from jobs.dags.prdp_steps import Done, End, Refused, Site, Unfinished, end_of, relay, require_released, run
from pipeline.base import errors
from pipeline.base.log import plain_log
from pipeline.ledger import fold
from tests.support.ledgers import ledger_file
from tests.support.patience import PATIENCE
from tests.support.world import records, write_world

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "jobs" / "dags"
HERE = {"bin": str(Path(sys.executable).parent), "home": str(ROOT)}
STATES = (None, "reserved", "drawn", "held", "published", "settled", "aborted", "refused", "rejected", "withdrawn")
CODES = (None, -9, 0, 1, 2, 3, 4, 5, 137)


def site(folder: Path, **changes: Any) -> Site:
    told = HERE | {"plans": str(folder), "ledger": str(folder / "state" / "ledger.sqlite")} | changes
    return Site.of(lambda name: told.get(name.removeprefix("prdp_")))


def story(state: str | None, *, draws: int = 1, approved: bool = False) -> Any:
    return None if state is None else {"state": state, "draws": draws, "approved": approved, "attempts": []}


# What an end means


def test_the_words_and_numbers_are_those_of_prdp() -> None:
    final = (errors.PlanError, errors.BudgetRefused, errors.MicrodataError)
    assert tuple(error.exit_code for error in final) == steps.FINAL
    assert errors.MicrodataError.exit_code == steps.CONFIDENTIAL
    assert set(steps.ENDED) == set(fold.ENDED)
    with redirect_stderr(io.StringIO()) as said:
        plain_log().progress("drawing")
        main(["explain", "/there/is/no.yaml"])
    progress, error = said.getvalue().splitlines()
    assert steps.PROGRESS.match(progress)
    assert error.startswith(steps.ERROR)


@pytest.mark.parametrize(
    ("code", "state", "end"),
    [
        (0, "settled", End.PUBLISHED),
        (-9, "settled", End.PUBLISHED),  # killed after its last step
        (0, "held", End.HELD),
        (137, "held", End.HELD),
        (2, None, End.REFUSED),
        (4, "reserved", End.REFUSED),
        (1, "rejected", End.REFUSED),
        (5, "aborted", End.REFUSED),
        (1, None, End.UNFINISHED),
        (5, "drawn", End.UNFINISHED),
        (-9, "drawn", End.UNFINISHED),
        (None, "reserved", End.UNFINISHED),
        (0, "published", End.UNFINISHED),  # its files are not all in place
        (0, None, End.UNFINISHED),  # another ledger than the command's
    ],
)
def test_how_a_release_ended(code: int | None, state: str | None, end: End) -> None:
    assert end_of(code, story(state)) is end


def rule_is_kept(decide: Any, code: int | None, state: str | None, approved: bool, draws: int) -> bool:
    """What no decision may get wrong: only the ledger says published or held, and refusals are not tried again."""
    end = decide(code, story(state, approved=approved, draws=draws))
    told = end is (End.PUBLISHED if state == "settled" else End.HELD)
    if state == "settled" or (state == "held" and not approved):
        return told
    return end is End.REFUSED if code in (2, 3, 4) else end in (End.UNFINISHED, End.REFUSED)


EVERY = st.tuples(st.sampled_from(CODES), st.sampled_from(STATES), st.booleans(), st.integers(0, 4))


@given(EVERY)
def test_the_rule_holds_for_every_end(case: Any) -> None:
    assert rule_is_kept(end_of, *case)


@pytest.mark.parametrize(
    "broken",
    [
        lambda code, story: End.PUBLISHED if code == 0 else end_of(code, story),  # believes the process
        lambda code, story: End.UNFINISHED if code else end_of(code, story),  # tries refusals again
        lambda code, story: end_of(code, story and story | {"approved": True}),  # takes what is held for approved
    ],
)
def test_the_rule_rejects_broken_decisions(broken: Any) -> None:
    cases = [(code, state, approved, 1) for code in CODES for state in STATES for approved in (False, True)]
    assert not all(rule_is_kept(broken, *case) for case in cases)


def test_a_breach_that_gave_its_charge_back_may_be_tried_again_once_it_is_mended() -> None:
    assert end_of(137, story("aborted", draws=0)) is End.UNFINISHED
    assert end_of(4, story("aborted", draws=0)) is End.REFUSED


def test_refusals_and_the_rest_are_told_apart_and_code_4_tells_nothing() -> None:
    secret = Done(4, errors=["column employment: a value is below 0"])
    with pytest.raises(Refused, match="confidential") as refused:
        require_released(secret, story("aborted", draws=0))
    assert "employment" not in str(refused.value)
    with pytest.raises(Refused, match="refused by the budget"):
        require_released(Done(3, errors=["refused by the budget"]), None)
    with pytest.raises(Unfinished, match="exit code -9"):
        require_released(Done(-9), story("drawn"))
    with pytest.raises(Unfinished, match="does not show"):
        require_released(Done(0), None)
    assert require_released(Done(1), story("settled")) == "settled"
    assert type(Done(2).failure()) is Refused
    assert type(Done(5).failure()) is Unfinished


def test_who_waits_for_an_approval() -> None:
    assert not steps.approved(story("held"))
    assert steps.approved(story("held", approved=True))
    assert steps.approved(story("settled"))
    for state in (None, "reserved", "drawn", "rejected", "aborted", "withdrawn"):
        with pytest.raises(Refused, match="waits for no approval"):
            steps.approved(story(state))


# What is passed on


def test_only_what_prdp_itself_says_is_passed_on() -> None:
    said: list[str] = []
    lines = [
        "26/11/21 15:00:00 INFO TaskSetManager: Finished task 0.0 in stage 1.0 with 4711 records",
        "[   0.1 s] reading the microdata",
        "Traceback (most recent call last):",
        "ValueError: employment 4711",
        "error: the ledger is locked",
    ]
    assert relay([f"{line}\n" for line in lines], said.append) == ["the ledger is locked"]
    assert said == ["[   0.1 s] reading the microdata"]


def test_a_log_as_json_is_kept_whole_and_its_messages_are_passed_on(tmp_path: Path) -> None:
    with redirect_stderr(io.StringIO()) as said:
        main(["release", "/there/is/no.yaml", "--log-json"])
    (error,) = said.getvalue().splitlines()
    reading = json.dumps(json.loads(error) | {"event": "begun", "message": "reading the microdata", "level": "info"})
    quiet = json.dumps(json.loads(error) | {"event": "ended", "message": None})
    kept: list[str] = []
    told: list[str] = []
    lines = [reading, quiet, error, '{"event": "SparkListenerTaskEnd", "message": "4711 records"}', "{4711", "[4711]"]
    assert relay(lines, told.append, kept.append) == ["/there/is/no.yaml: no such file"]
    assert told == ["reading the microdata"]
    assert kept == [reading, quiet, error]
    program = f"import sys; print({error!r}, file=sys.stderr)"
    log = tmp_path / "logs" / "log.jsonl"
    done = run([sys.executable, "-c", program], {}, print, log_file=log)
    assert (done.errors, log.read_text(), log.stat().st_mode & 0o777) == (
        ["/there/is/no.yaml: no such file"],
        f"{error}\n",
        0o600,
    )
    assert log.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Refused, match="prdp_logs"):
        run([sys.executable, "-c", program], {}, print, log_file=log / "below.jsonl")


TWO = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); {}"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_task_that_is_ended_ends_all_of_its_processes(stubborn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark's, a command of two processes; one that ignores SIGTERM is killed."""
    monkeypatch.setattr(steps, "TIDY_SECONDS", 0.5 if stubborn else PATIENCE)
    ignore = "import signal; signal.signal(15, signal.SIG_IGN); " if stubborn else ""
    program = TWO.format(f"{ignore}print('[   0.1 s] here', file=sys.stderr, flush=True); time.sleep(600)")
    running, group = steps.Running(), []

    def end(line: str) -> None:
        assert running.process is not None
        group.append(running.process.pid)
        Thread(target=running.end).start()

    done = run([sys.executable, "-c", program], {}, end, running)
    assert done.code == (-9 if stubborn else -15)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.killpg(group[0], 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")


def test_a_command_runs_without_airflows_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "secret")
    monkeypatch.setenv("PGPASSFILE", "/etc/pass")
    program = "import os, sys; print(sorted(n for n in os.environ if n[:2] in ('AI', 'PG', 'ZZ'))); sys.exit(5)"
    done = run([sys.executable, "-c", program], {"ZZ": "1"}, print)
    assert (done.code, done.out) == (5, "['PGPASSFILE', 'ZZ']\n")
    assert done.errors == []
    with pytest.raises(Refused, match="prdp_bin"):
        run(["/there/is/none"], {}, print)


class TaskTimeout(BaseException):
    """What Airflow raises in a task that takes longer than its execution_timeout."""


def alarm_after(mark: Path) -> None:
    while not (mark.exists() and mark.read_text()):
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGALRM)


def test_a_task_that_takes_too_long_ends_its_command(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(900)"

    def alarm(*_: Any) -> None:
        raise TaskTimeout

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        Thread(target=alarm_after, args=(mark,), daemon=True).start()
        with pytest.raises(TaskTimeout):
            run([sys.executable, "-c", program], {}, print)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_no_task_of_the_dags_may_run_for_ever() -> None:
    text = (DAGS / "prdp_release.py").read_text()
    assert '"execution_timeout": LONGEST' in text
    assert re.search(r"^LONGEST = timedelta\(hours=[0-9]+\)", text, re.MULTILINE)


# Where things lie


def test_a_site_is_told_whole_or_refused(tmp_path: Path) -> None:
    for name in ("bin", "home", "plans"):
        for wrong in (None, "", "relative"):
            with pytest.raises(Refused, match=f"prdp_{name}"):
                site(tmp_path, **{name: wrong})
    with pytest.raises(Refused, match="PGPASSFILE") as refused:
        site(tmp_path, ledger="postgresql://airflow:hunter2@db/ledger")
    assert "hunter2" not in str(refused.value)
    assert site(tmp_path, ledger="postgresql://airflow@db/ledger").ledger_option()[1].endswith("@db/ledger")
    assert site(tmp_path, ledger=None).location_options() == []
    documented = (ROOT / "docs" / "airflow.md").read_text()
    assert [field.name for field in fields(Site) if f"`prdp_{field.name}`" not in documented] == []


@pytest.mark.parametrize(
    "name", ["", "/etc/plan.yaml", "../plan.yaml", "a/../../plan.yaml", "--debug", "out/plan.yaml"]
)
def test_a_plan_lies_below_the_folder_of_plans(tmp_path: Path, name: str) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "out").symlink_to(tmp_path)
    with pytest.raises(Refused, match="plan"):
        site(tmp_path / "plans").plan(name)
    assert site(tmp_path / "plans").plan("2024/a.yaml") == str(tmp_path / "plans" / "2024" / "a.yaml")


def test_the_options_are_those_that_prdp_takes(tmp_path: Path) -> None:
    from jobs.cli import parse

    full = site(tmp_path, out="/o", staging="/s", diagnostics="/d", dask_scheduler="tls://h:1", lineage="/l", logs="/j")
    month = {"month": "2026-11"}
    _, *words = full.on_dask("release", full.release("a.yaml", month, hold=True, csv=True))
    given = parse(words)
    assert (given.out, given.staging, given.scheduler, given.hold, given.csv) == ("/o", "/s", "tls://h:1", True, True)
    assert (given.set, str(given.lineage), given.log_json) == (["month=2026-11"], "/l", True)
    plain = parse(["release", *site(tmp_path).release("a.yaml", {})])
    assert (plain.set, plain.lineage, plain.log_json, plain.hold) == ([], None, False, False)
    given = parse(["ledger", "afford", full.plan("a.yaml"), *full.location_options(), "--json"])
    assert (given.ledger, given.out) == (full.ledger, "/o")
    given = parse(["diagnose", *full.diagnose("a.yaml", month, "/o/r", "manual__2026-11-21T15:00:00+00:00-1")])
    assert (given.out, str(given.release)) == ("/d/manual__2026-11-21T15_00_00_00_00-1", "/o/r")
    assert given.set == ["month=2026-11"]
    with pytest.raises(Refused, match="prdp_diagnostics"):
        replace(full, diagnostics=None).diagnose("a.yaml", {}, "/o/r", "x")


def test_spark_is_submitted_with_a_driver_here(tmp_path: Path) -> None:
    call = site(tmp_path, py_files="/p.zip", spark_conf="/s.conf").on_spark("release", ["a.yaml"], "spark://m:7077")
    before, after = call[: call.index(f"{ROOT}/jobs/release.py")], call[call.index(f"{ROOT}/jobs/release.py") + 1 :]
    assert (before[0], after) == ("spark-submit", ["a.yaml"])
    options = dict(zip(before[1::2], before[2::2], strict=True))
    assert options == {
        "--master": "spark://m:7077",
        "--deploy-mode": "client",
        "--name": "prdp",
        "--properties-file": "/s.conf",
        "--py-files": "/p.zip",
    }
    other = site(tmp_path).on_spark("diagnose", ["a.yaml"], "local[2]")
    assert other[-3:] == [f"{ROOT}/jobs/submit.py", "diagnose", "a.yaml"]
    assert {(ROOT / "jobs" / name).is_file() for name in ("release.py", "submit.py")} == {True}
    assert f"{ROOT}/conf/spark/local.conf" in other
    assert steps.master_of("spark://m", 7077, {"deploy-mode": "client"}) == "spark://m:7077"
    assert steps.master_of("local[4]", None, {}) == "local[4]"
    for host, settings, said in ((None, {}, "name the master"), ("m", {"deploy-mode": "cluster"}, "must be client")):
        with pytest.raises(Refused, match=said):
            steps.master_of(host, None, settings)


def test_values_of_variables_are_texts() -> None:
    for told in ({"year": "2026"}, '{"year": "2026"}'):
        assert steps.values_of(told) == {"year": "2026"}
    for none in (None, "", "{}", {}):
        assert steps.values_of(none) == {}
    for wrong in ({"year": 2026}, "2026", "{", "[]", '{"year": null}'):
        with pytest.raises(Refused, match="as text"):
            steps.values_of(wrong)
    assert (steps.is_true("True"), steps.is_true(False)) == (True, False)
    for wrong in ("true", "", None, 1):
        with pytest.raises(Refused, match="True or False"):
            steps.is_true(wrong)


def test_a_release_from_check_to_end_by_its_commands(tmp_path: Path) -> None:
    write_world(tmp_path, records(20))
    here = site(tmp_path)
    ledger_file(Path(here.ledger))
    environment = here.environment("airflow dag run")

    def answer(*arguments: str) -> Any:
        return steps.run_json(here.command(*arguments), environment, print)

    assert answer("ledger", "afford", here.plan("plan.yaml"), *here.location_options(), "--json")["state"] is None
    done = run(here.on_dask("release", here.release("plan.yaml", {}, hold=True)), environment, print)
    found = steps.release_in(answer("ledger", "show", *here.ledger_option(), "--json"), "small-release")
    assert require_released(done, found) == "held"
    assert found is not None
    assert {act["operator"] for act in found["acts"]} == {"airflow dag run"}
    with pytest.raises(Refused, match=r"plan\.yaml"):
        answer("explain", here.plan("none/plan.yaml"), "--json")


# The files


def test_the_dags_import_airflow_the_standard_library_and_one_another() -> None:
    allowed = {*sys.stdlib_module_names, "airflow", "prdp_steps", "prdp_operators"}
    for path in DAGS.glob("*.py"):
        imported = {
            name.partition(".")[0]
            for part in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in part.names]
                if isinstance(part, ast.Import)
                else [part.module or "."]
                if isinstance(part, ast.ImportFrom)
                else []
            )
        }
        assert imported <= allowed, path.name
        assert path.name != "prdp_steps.py" or "airflow" not in imported


def test_no_operator_or_hook_of_airflow_is_changed() -> None:
    """Nothing private of another's object is read or set: only of `self`, or of our own modules."""
    for path in DAGS.glob("*.py"):
        for part in ast.walk(ast.parse(path.read_text())):
            if isinstance(part, ast.Attribute) and part.attr.startswith("_") and not part.attr.startswith("__"):
                assert ast.unparse(part.value) == "self", f"{path.name}: {ast.unparse(part)}"


def test_the_example_files_name_the_variables_and_hold_no_secret() -> None:
    conf = ROOT / "conf" / "airflow"
    variables = json.loads((conf / "variables.json").read_text())
    assert set(variables) <= {f"prdp_{field.name}" for field in fields(Site)}
    Site.of(variables.get)
    connections = json.loads((conf / "connections.json").read_text())
    assert connections["prdp_spark"]["conn_type"] == "spark"
    assert not {"password", "login"} & set(connections["prdp_spark"])
    for name in ("requirements.txt", "constraints.txt"):
        assert "://" not in (conf / name).read_text()


def test_errors_of_an_end_that_is_not_known_are_not_told() -> None:
    """They may be those of exit code 4. The twin: of a code that is known and open they are."""
    assert "canary" not in Done(None, errors=["canary"]).reason()
    assert "canary" in Done(1, errors=["canary"]).reason()
