from pathlib import Path

import numpy as np
import pytest

from pipeline.base.errors import PlanError
from pipeline.plan.domain.code_lists import CHUNK_ROWS, read_cells, read_list
from tests.support.domains import listed_domain


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "codes.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "key", "codes", "level"),
    [
        ("code\n311111\n111110\n", "naics", ("111110", "311111"), "naics6"),
        ("code,name\r\n31-33,Manufacturing\r\n42,Wholesale\r\n", "naics", ("31-33", "42"), "naics2"),
        ('code,name\n3111,"Food, animal\nand other"\n1111,""\n', "naics", ("1111", "3111"), "naics4"),
        ("\ufeffcode\n01001", "county", ("01001",), "county"),
    ],
)
def test_lists_of_codes(tmp_path: Path, text: str, key: str, codes: tuple[str, ...], level: str) -> None:
    dimension = read_list(written(tmp_path, text), key)
    assert dimension.codes == codes
    assert dimension.level == level


@pytest.mark.parametrize(
    ("text", "key", "fault"),
    [
        ("code\n311111\n\n111110\n", "naics", "line 3: 0 columns, but the header has 1"),
        (
            "code\n311111\n31111x\n",
            "naics",
            'line 3: malformed code "31111x"; 2 to 6 digits (sectors as 31-33) are needed',
        ),
        ("code\n001111\n", "naics", 'line 2: malformed code "001111"; 2 to 6 digits (sectors as 31-33) are needed'),
        (
            "code\n01001\nother\n",
            "county",
            'line 3: "other" stands in no list; declare it in the plan, as domain: {…, other: [county]}',
        ),
    ],
)
def test_faulty_lists(tmp_path: Path, text: str | bytes, key: str, fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PlanError) as caught:
        read_list(path, key)
    assert str(caught.value) == f"{path}: {fault}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for read in (lambda path: read_list(path, "naics"), lambda path: read_cells(path, {})):
        with pytest.raises(PlanError, match="no such file; paths are relative to the file that names them"):
            read(tmp_path / "absent.csv")
        with pytest.raises(PlanError, match="cannot be read: Is a directory"):
            read(tmp_path)


CELLS = [("311111", "01003"), ("311111", "01001"), ("111110", "02001")]


@pytest.mark.parametrize("header", [("naics", "county"), ("county", "naics")])
def test_lists_of_cells(tmp_path: Path, header: tuple[str, str]) -> None:
    rows = [cell if header[0] == "naics" else cell[::-1] for cell in CELLS]
    domain = read_cells(written(tmp_path, "\n".join(",".join(row) for row in [header, *rows])), {"naics": 2022})
    assert domain == listed_domain(CELLS, {"naics": 2022})
    assert domain.cells is not None
    assert [column.tolist() for column in domain.cells] == [[0, 1, 1], [2, 0, 1]]
    assert domain.vintage == {"naics": 2022}


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (
            "naics,county\n311111,01001\n01001,311111",
            'line 3: code "01001" is of naics5, the codes above it of naics6; use one level',
        ),
        ("county,naics\n01001,31", 'line 2: "31" is a part of a sector; write 31-33'),
    ],
)
def test_faulty_cells(tmp_path: Path, rows: str, fault: str) -> None:
    path = written(tmp_path, rows)
    with pytest.raises(PlanError) as caught:
        read_cells(path, {})
    assert str(caught.value) == f"{path}: {fault}"


def test_cells_over_several_chunks(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    pairs = [(f"{311000 + i // 97}", f"{1000 + i % 97:05d}") for i in random.permutation(2 * CHUNK_ROWS + 5).tolist()]
    lines = ["naics,county", *(",".join(pair) for pair in pairs)]
    assert read_cells(written(tmp_path, "\n".join(lines)), {}) == listed_domain(pairs)
    for at in (CHUNK_ROWS + 7, 2 * CHUNK_ROWS + 1):
        bad = [*lines]
        bad[at] = "311000,1"
        with pytest.raises(PlanError, match=f"line {at + 1}: malformed"):
            read_cells(written(tmp_path, "\n".join(bad)), {})
        bad[at] = bad[3]
        with pytest.raises(PlanError, match=f"line {at + 1}: the cell stands twice"):
            read_cells(written(tmp_path, "\n".join(bad)), {})
