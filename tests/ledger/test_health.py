"""`prdp doctor --ledger-only`: each condition that must be mended is found, and is not found where it does not hold."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import prdp
from jobs.cli import main
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from pipeline.operations.ledger_health import MEND, MOST_NAMED, RECENT, certificates, disks, health
from pipeline.operations.officer_page import HELD_LONG
from tests.support.ledgers import drawn_and_destroyed, ledger_file, reservation, stage, staged
from tests.support.postgres import OWNER, PASSWORD, PostgresServer
from tests.support.tls import certificates as made
from tests.support.tls import tls_in_front_of

NOW = datetime.now(UTC)
FREE = 1e-6  # GB
HOUR = timedelta(hours=1)


def wrong(ledger: Ledger, later: timedelta = timedelta(minutes=5), least_free: float = FREE) -> list[str]:
    found = health(ledger, datetime.now(UTC) + later, least_free=least_free)
    return [f"{each.check}: {each.what}" for each in found if each.state == MEND]


@pytest.mark.parametrize("last", ["reserved", "drawn", "published", "held", "approved"])
def test_a_release_that_waits_too_long(ledger: Ledger, tmp_path: Path, last: str) -> None:
    ledger.reserve(reservation("r", out=str(tmp_path / "out"), hold=last in ("held", "approved")))
    if last != "reserved":
        attempt = ledger.draw("r", "sha256:pin")
        contents = stage(ledger, "r", attempt).digest if last != "drawn" else ""
        if last in ("held", "approved"):
            ledger.hold("r", attempt, contents)
        if last == "approved":
            ledger.approve("r", attempt)
        if last == "published":
            ledger.publish("r", attempt, contents)
    patience = HELD_LONG if last == "held" else HOUR
    assert wrong(ledger, patience - timedelta(minutes=1)) == []
    (told,) = wrong(ledger, patience + timedelta(minutes=9))
    assert told.startswith(f"releases: r is {last} for ")


def test_releases_under_way_are_named_and_no_others(ledger: Ledger, tmp_path: Path) -> None:
    def named() -> str:
        return next(each.what for each in health(ledger, datetime.now(UTC) + HOUR / 2) if each.check == "releases")

    assert named() == "none is under way"
    ledger.reserve(reservation("begun"))
    ledger.reserve(reservation("given-up"))
    ledger.abort("given-up")
    ledger.hold("waits", staged(ledger, "waits", tmp_path / "out"), "sha256:contents")
    drawn_and_destroyed(ledger, "begun", 1)
    assert named() == "under way: begun is destroyed for 0.5 hours, waits is held for 0.5 hours"
    for number in range(MOST_NAMED):
        ledger.reserve(reservation(f"r{number}", dataset=f"d{number}"))
    assert named().endswith(f"r{MOST_NAMED - 3} is reserved for 0.5 hours and 2 more")


def test_a_settled_release_waits_for_nothing(ledger: Ledger, tmp_path: Path) -> None:
    attempt = staged(ledger, "r", tmp_path / "out")
    ledger.publish("r", attempt, "sha256:contents")
    ledger.settle("r", attempt)
    assert wrong(ledger, timedelta(days=400)) == []


def test_a_release_that_was_drawn_twice_is_told_until_a_week_after_its_end(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    drawn_and_destroyed(ledger, "r", 1)
    assert wrong(ledger) == []
    drawn_and_destroyed(ledger, "r", 1)
    twice = ["draws: r: draws 2, charges 1"]
    assert wrong(ledger) == twice
    ledger.abort("r")
    assert wrong(ledger, RECENT - HOUR) == twice
    assert wrong(ledger, RECENT + HOUR) == []


def test_a_closed_ledger_and_a_full_disk(ledger: Ledger) -> None:
    assert wrong(ledger) == []
    ledger.close("restored")
    assert [told.partition(":")[0] for told in wrong(ledger, least_free=1e9)] == ["ledger", "disk"]


def test_disks_are_told_once_and_by_the_nearest_folder(tmp_path: Path) -> None:
    (found,) = disks([("staging", tmp_path / "a" / "b"), ("the output", tmp_path), ("staging", tmp_path)], FREE)
    assert f"free for staging, the output (the disk of {tmp_path})" in found.what


def test_certificates_that_end(tmp_path: Path) -> None:
    (authority, leaf, _), path = made("localhost"), tmp_path / "cert.pem"
    path.write_bytes(leaf)

    def states(name: str, days: int) -> list[str]:
        return [each.what for each in certificates({name: path}, NOW + timedelta(days=days)) if each.state == MEND]

    assert states("sslcert", -14) == []
    assert "ends on" in states("sslcert", 0)[0]
    assert "ended on" in states("sslcert", 2)[0]
    path.write_bytes(authority + b"no certificate")
    assert states("sslrootcert", -14) == []
    path.write_text("no certificate")
    assert "no certificate in PEM" in states("sslrootcert", -14)[0]
    path.unlink()
    assert "cannot be read" in states("sslrootcert", -14)[0]
    assert certificates({"sslkey": path, "passfile": path}, NOW)[0].state == "not looked at"


def test_a_server_s_ledger_and_the_certificate_that_its_environment_names(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(postgres.database())
    create_ledger(url)
    assert wrong(open_ledger(url)) == []
    path = tmp_path / "root.crt"
    path.write_bytes(made("localhost")[0])
    monkeypatch.setenv("PGSSLROOTCERT", str(path))
    assert f"certificates: sslrootcert {path} ends on" in wrong(open_ledger(url))[0]


def test_the_certificate_that_a_server_shows(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, leaf, key = (tmp_path / name for name in ("root.pem", "leaf.pem", "key.pem"))
    for path, data in zip((root, leaf, key), made("ledger.test"), strict=True):
        path.write_bytes(data)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with tls_in_front_of(postgres.port, leaf, key) as port:
        at = f"ledger.test:{port}/{postgres.database()}?hostaddr=127.0.0.1&sslrootcert={root}"
        served = create_ledger(f"postgresql://{OWNER}@{at}")
        assert "certificates: the one of the ledger's server ends on" in str(wrong(served))
        assert wrong(served, -timedelta(days=14)) == []


def test_the_command_and_the_method_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = ledger_file(tmp_path / "state" / "ledger.sqlite")
    prdp.open_ledger(path)._store.reserve(reservation("r"))
    assert prdp.open_ledger(path).health(least_free=FREE)["well"]
    assert not prdp.open_ledger(path).health(longest=1e-9, least_free=FREE)["well"]
    call = ["ledger", "health", "--ledger", path, "--least-free", str(FREE)]
    assert main(call) == 0
    assert main([*call, "--longest", "1e-9"]) == 1
    told = capsys.readouterr()
    assert "mend: releases: r is reserved for 0.0 hours" in told.out
    assert re.search(r"error: 1 of \d findings must be mended\n$", told.err)  # one for each disk
    assert main(["ledger", "health", "--ledger", str(tmp_path / "none.sqlite")]) == 5
    assert not (tmp_path / "none.sqlite").exists()
