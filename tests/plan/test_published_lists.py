"""Code lists as offices publish them: the same dimension as a plain list, and a clear refusal of what is no tree."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import PlanError
from pipeline.plan.domain.code_lists import read_list
from pipeline.plan.domain.keys import Dimension
from pipeline.plan.plan_schema import ListSpec

PLAIN = "code,name,section,division\n01.1,Growing of crops,A,01\n01.2,Animals,A,01\n10.1,Meat,C,10\n"
NACE = """Order;Level;Code;Parent;Description;Beschreibung
1;1;A;;Agriculture;Landwirtschaft
2;2;01;A;Crop and animal production;Pflanzen und Tiere
3;3;01.1;01;Growing of crops;Anbau
4;3;01.2;01;Animals;Tierhaltung
5;1;C;;Manufacturing;Herstellung von Waren
6;2;10;C;Food products;Nahrungsmittel
7;3;10.1;10;Meat;Fleisch
"""
TREE = {"code": "Code", "name": "Description", "parent": "Parent", "levels": ["section", "division"]}
NUTS = "CNTR_CODE,NAME_LATN,NUTS_ID\nDE,Stuttgart,DE11\nAT,Wien,AT13\n"


def read(folder: Path, text: str, file: str = "codes.csv", **spec: Any) -> Dimension:
    path = folder / file
    path.write_text(text)
    return read_list(path, "activity", ListSpec(list=file, **spec))


def sdmx(codes: list[dict[str, Any]]) -> str:
    return json.dumps({"data": {"codelists": [{"id": "CL_ACTIVITY", "codes": codes}]}})


def of_nace() -> list[dict[str, Any]]:
    rows = [line.split(";") for line in NACE.splitlines()[1:]]
    return [
        {"id": code, "name": name, "names": {"en": name, "de": german}} | ({"parent": parent} if parent else {})
        for _, _, code, parent, name, german in rows
    ]


def facts(dimension: Dimension) -> dict[str, Any]:
    return dimension.to_json() | {"names": dict(dimension.names)}


def test_a_tree_is_the_list_with_a_column_for_each_level(tmp_path: Path) -> None:
    plain = read(tmp_path, PLAIN, levels=["section", "division"])
    tree = read(tmp_path, NACE, **TREE)
    message = read(tmp_path, sdmx(of_nace()), "codes.json", levels=["section", "division"])
    assert facts(tree) == facts(message) == facts(plain)
    above = {"A": "Agriculture", "01": "Crop and animal production", "C": "Manufacturing", "10": "Food products"}
    assert dict(tree.coarser_names) == dict(message.coarser_names) == above


def test_a_plan_chooses_the_language_of_names(tmp_path: Path) -> None:
    german = {"01.1": "Anbau", "01.2": "Tierhaltung", "10.1": "Fleisch"}
    assert dict(read(tmp_path, NACE, **TREE | {"name": "Beschreibung"}).names) == german
    levels = ["section", "division"]
    assert dict(read(tmp_path, sdmx(of_nace()), "codes.json", levels=levels, name="de").names) == german


def test_columns_may_have_any_names_and_order(tmp_path: Path) -> None:
    dimension = read(
        tmp_path, NUTS.replace("CNTR_CODE", "country"), code="NUTS_ID", name="NAME_LATN", levels=["country"]
    )
    assert dimension.codes == ("AT13", "DE11")
    assert dict(dimension.names) == {"AT13": "Wien", "DE11": "Stuttgart"}
    assert dimension.level_codes("country") == ("AT", "DE")


@pytest.mark.parametrize(
    ("text", "changes", "fault"),
    [
        (NACE, {"code": "Kode"}, "line 1: there is no column Kode, which the plan names"),
        (NACE, {"levels": ["section"]}, 'line 4: "01.1" has 2 above it, but `levels` names 1; name those'),
        (NACE, {"levels": ["a", "b", "c"]}, 'line 4: "01.1" has 2 above it, but `levels` names 3'),
        (NACE.replace(";C;;", ";C;A;"), {}, 'line 8: "10.1" has 3 above it, but `levels` names 2'),
        (NACE.replace("1;1;A;;", "1;1;A;01;"), {}, 'line 2: "A" has 3 or more above it'),  # a circle
        (NACE.replace("10;Meat", "11;Meat"), {}, 'line 8: "11", which is above it, is no code of the list'),
        (NACE + "8;3;10.1;01;Meat;Fleisch\n", {}, 'line 9: code "10.1" stands twice, and has two parents'),
        (NACE + "8;3;;01;Meat;Fleisch\n", {}, "line 9: there is no code"),
        (NACE + "8;3;10.2\n", {}, "line 9: 3 columns, but the header has 6"),
        (NACE + "8;2;30;C;Ships;Schiffe\n", {}, 'line 9: "30" has 1 above it, but `levels` names 2'),
        (NACE.replace("Crop and", "Crop \x07 and"), {}, "code 01: "),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, text: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(PlanError) as raised:
        read(tmp_path, text, **TREE | changes)
    assert f"codes.csv: {fault}" in str(raised.value)


GERMAN = {"id": "D", "names": {"de": "d"}}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{\n"data": [', "line 2: not JSON; give a CSV file, or a structure message in SDMX-JSON"),
        ("[" * 100_000, "not JSON; give a CSV file, or a structure message in SDMX-JSON"),
        ("[]", "must be a structure message in SDMX-JSON with one code list"),
        ('{"data": {"codelists": []}}', "must be a structure message in SDMX-JSON with one code list"),
        ('{"data": {"codelists": [{"codes": []}, {"codes": []}]}}', "with one code list"),
        (
            sdmx([GERMAN, {"id": "A", "names": {"en": "a", "fr": "b"}}]),
            "code 2: has no name in de: its names are in en, fr",
        ),
        (sdmx([{"id": "A", "name": "a"}]), "code 1: has no name in de: it has names in no language"),
        (sdmx([{"id": 1, "names": {"de": "a"}}]), "code 1: must have an id, and an id above it if any, which are text"),
        (sdmx([{"id": "A", "parent": ["B"], "names": {"de": "a"}}]), "code 1: must have an id, and an id above it"),
        (sdmx(["A"]), "code 1: has no name in de"),
        (sdmx([{"id": "A", "names": {"de": "a"}}] * 2), 'code "A" stands twice'),
    ],
)
def test_other_messages_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(PlanError) as raised:
        read(tmp_path, text, "codes.json", name="de")
    assert fault in str(raised.value)
    with pytest.raises(PlanError, match="no such file"):
        read_list(tmp_path / "none.json", "activity")
