"""Text from outside acts on nobody: refused at the edge, and escaped wherever it is printed all the same."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from jobs.commands import print_columns, print_json, put, say, tell
from pipeline.base.errors import PlanError, PrdpError
from pipeline.base.log import json_log, plain_log
from pipeline.base.plain import is_plain, plain_json, rule_of_name
from pipeline.ledger.store import create_ledger
from pipeline.plan.load import load_plan
from tests.support.ledgers import ledger_file, reservation
from tests.support.published import drawn, publish
from tests.support.submit import Place, released
from tests.support.world import COUNTIES, NAICS, records, write_world

# From the Unicode standard: categories Cc, Zl and Zp, the property Bidi_Control, and U+FEFF.
CONTROL = [*map(chr, [*range(0x20), *range(0x7F, 0xA0)])]
BIDI = [*map(chr, [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])]
SEPARATORS = ["\u2028", "\u2029", "\ufeff"]
ACTING = [c for c in (*CONTROL, *BIDI, *SEPARATORS) if c not in "\t\n"]
FEW = ["\x00", "\x1b", "\x7f", "\x85", "\x9b", "\u202e", "\u2066", "\u2028", "\u200f", "\r"]
ATTACK = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202ereversed"
FOLDERS = ("verify", "site", "export", "reconcile", "product", "derive")


def raw(text: str) -> list[str]:
    """The characters of a text that act."""
    return [c for c in text if c in ACTING or 0xD800 <= ord(c) <= 0xDFFF]


def called(*words: str) -> tuple[int, str]:
    """Run a command; return its exit code and all that it printed."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = main(list(words))
    return code, out.getvalue()


@given(st.text(st.sampled_from([*ACTING, "\ud800", "a", " ", "\n"])))
def test_nothing_that_is_printed_acts(text: str) -> None:
    out = io.StringIO()
    printers: list[Callable[[str], Any]] = [put, tell, say, lambda x: print_json({x: [x]})]
    with redirect_stdout(out), redirect_stderr(out):
        for printed in printers:
            printed(text)
        print_columns([[text.replace("\n", ""), "b"], ["c", text.replace("\n", "")]])
        for log in (plain_log(), json_log("verify")):
            log.warning(text)
            log.error(text, 1, debug=False)
    assert raw(out.getvalue()) == []


@given(st.text())
def test_printed_json_reads_as_what_it_was(text: str) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        print_json({"text": text})
    assert json.loads(out.getvalue()) == {"text": text}


def test_every_edge_knows_every_character() -> None:
    for acting in ACTING:
        assert not is_plain(f"a{acting}b")
        assert rule_of_name(f"a{acting}b") is not None
        for document in ({"a": [{"b": f"x{acting}"}]}, {f"x{acting}": 1}):
            with pytest.raises(ValueError, match="control"):
                plain_json(json.dumps(document))


def test_texts_of_all_scripts_are_plain() -> None:
    """The twin: accents, scripts from right to left, joiners that words need, symbols."""
    for text in ("Île-de-France, Größe", "עברית", "العربية", "نمی\u200cخواهم", "日本", "5 € − 3", "a\u00a0b", "👩‍🌾"):
        assert is_plain(text)
        assert rule_of_name(text) is None
        assert plain_json(json.dumps(text)) == text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("released")
    released(write_world(folder, records(50)), folder)
    return Place(folder / "plan.yaml", folder)


def changed(value: Any, key: str, text: str) -> Any:
    """A document with a text at a key, wherever it stands."""
    if isinstance(value, dict):
        return {name: text if name == key else changed(one, key, text) for name, one in value.items()}
    return [changed(one, key, text) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("json_too", [[], ["--json"]])
@pytest.mark.parametrize("key", ["release", "plan_digest", "date", "ledger_head", "query", "path", "attempt"])
def test_a_strangers_manifest_prints_nothing_that_acts(
    place: Place, tmp_path: Path, key: str, json_too: list[str]
) -> None:
    folder = tmp_path / "small-release"
    shutil.copytree(place.out / "small-release", folder)
    manifest = json.loads((folder / "release.json").read_text())
    (folder / "release.json").write_text(json.dumps(changed(manifest, key, f"x{ATTACK}\nrelease: verified")))
    for command in FOLDERS:
        options = {"verify": json_too, "export": ["--to", "csv"], "derive": ["--total", "employment"]}.get(command, [])
        out = [] if command in ("verify", "derive") else ["--out", str(tmp_path / command)]
        code, printed = called(command, str(folder), *options, *out)
        assert code == 5 or (command != "verify" and code == 2)
        assert raw(printed) == []
        assert "\nrelease: verified" not in printed


@pytest.mark.parametrize("made", ["reconciled.json", "product.json", "withdrawn.json"])
def test_other_manifests_print_nothing_that_acts(tmp_path: Path, made: str) -> None:
    facts = {"releases": [{"release": ATTACK, "manifest_sha256": ATTACK}], "files": [], "groups": [], "tables": {}}
    facts |= {"title": ATTACK, "dataset": ATTACK, "withdrawn": ATTACK, "release": ATTACK, "ledger_head": ATTACK}
    (tmp_path / made).write_text(json.dumps(facts))
    code, printed = called("verify", str(tmp_path))
    assert code == 5
    assert raw(printed) == []


def test_names_of_files_beside_a_manifest_are_shown_escaped(tmp_path: Path) -> None:
    folder = publish(tmp_path, {"t": drawn({"region": ("N", "S")})})
    (folder / f"a{ATTACK}").write_text("")
    code, printed = called("verify", str(folder))
    assert (code, raw(printed)) == (5, [])
    assert "\\u001b" in printed


@pytest.mark.parametrize("acting", [*FEW, "\n", "\t"])
def test_reasons_are_plain_lines(tmp_path: Path, acting: str) -> None:
    ledger, at = create_ledger(str(tmp_path / "ledger.sqlite")), ledger_file(tmp_path / "ledger.sqlite")
    for reason in (f"a{acting}b", f"{acting}", "x" * 1001, " "):
        code, printed = called("ledger", "close", "--reason", reason, "--ledger", at)
        assert (code, raw(printed)) == (2, [])
        for act in (
            ledger.close,
            lambda text: ledger.reject("r", "a", text),
            lambda text: ledger.withdraw("r", "a", text),
        ):
            with pytest.raises(PlanError, match="reason"):
                act(reason)
    ledger.reserve(reservation("r"))
    ledger.close("moved to Île-de-France")


@pytest.mark.parametrize("acting", FEW)
def test_names_in_code_lists_are_plain(tmp_path: Path, acting: str) -> None:
    plan = write_world(tmp_path, None)
    with (tmp_path / "domain" / "counties.csv").open("w", newline="") as file:
        file.write("code,name\n" + "".join(f'{code},"Name{acting} of it"\n' for code in COUNTIES))
    with pytest.raises(PrdpError) as refused:
        load_plan(plan)
    assert "counties.csv" in str(refused.value)


@pytest.mark.parametrize(
    "name", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", ' =HYPERLINK("x")', "＝1+1", "-other"]
)
def test_names_that_a_spreadsheet_takes_for_formulas_are_refused(tmp_path: Path, name: str) -> None:
    plan = write_world(tmp_path, None)
    quoted = name.replace('"', '""')
    rows = "".join(f'{code},"{quoted if code == NAICS[0] else code}"\n' for code in NAICS)
    (tmp_path / "domain" / "naics.csv").write_text(f"code,name\n{rows}")
    with pytest.raises(PlanError, match="formula"):
        load_plan(plan)


@pytest.mark.parametrize("name", ["-", "+", "—", "A=B", "Food - fresh", "3 + more", "'-other"])
def test_other_names_may_hold_these_signs(tmp_path: Path, name: str) -> None:
    """The twin: a sign alone is no formula."""
    plan = write_world(tmp_path, None)
    rows = "".join(f'{code},"{name}"\n' for code in NAICS)
    (tmp_path / "domain" / "naics.csv").write_text(f"code,name\n{rows}")
    load_plan(plan)


@pytest.mark.parametrize("acting", FEW)
@pytest.mark.parametrize("where", ["title", "about", "key", "column"])
def test_texts_of_plans_are_plain(tmp_path: Path, where: str, acting: str) -> None:
    plan = write_world(tmp_path, None)
    data = yaml.safe_load(plan.read_text())
    text = f"a{acting}b"
    if where == "column":
        data["dataset"]["record"] = text
    else:
        data[text if where == "key" else where] = text
    plan.write_text(yaml.safe_dump(data))
    code, printed = called("explain", str(plan))
    assert (code, raw(printed)) == (2, [])
