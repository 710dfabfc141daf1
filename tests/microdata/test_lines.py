"""CSV line by line: no record can change what becomes of another."""

import csv as standard
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.base.errors import MicrodataError
from pipeline.microdata import lines
from pipeline.storage.paths import locate
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

COLUMNS = ["a", "b", "c"]


def parsed(path: Path, data: bytes) -> tuple[list[tuple[object, ...]], int]:
    """The records of a file of the columns a, b, c, and how many other lines stand beside them."""
    path.write_bytes(data)
    rows: list[tuple[object, ...]] = []
    others = 0
    for batch, odd in lines.records(locate(str(path)), COLUMNS):
        others += odd
        if batch is not None:
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows, others


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines") / "lines.csv"


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b"1,2,3", ("1", "2", "3")),
        (b'"1","2,2","3""3"', ("1", "2,2", '3"3')),
        (b"1,,3", ("1", None, "3")),
        (b" 1,2 ,3", (" 1", "2 ", "3")),
        (b"1,\xff\xfe,3", ("1", "\ufffd\ufffd", "3")),
        (b'1,"2,3', None),
        (b'1,2"x,"3', None),
        (b'1,"2"x,3', None),
        (b"1,2", None),
        (b"1,2,3,4", None),
        (b"1,2\x01,3", None),
        (b'"', None),
        (b"1,\x01\xff,3", None),
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_is_judged_by_itself(line: bytes, record: tuple[object, ...] | None, end: bytes, path: Path) -> None:
    before, after = [("x", "y", "z")] * 3, [("u", "v", "w")] * 4
    data = end.join([b"a,b,c", *[b"x,y,z"] * 3, line, *[b'"u",v,w'] * 4])
    rows, others = parsed(path, data)
    assert sorted(rows, key=str) == sorted(before + after + ([record] if record else []), key=str)
    assert others == (record is None)


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.tuples(*[st.text(st.characters(exclude_characters="\r\n\x01\x00", codec="utf-8"))] * 3)))
def test_what_a_csv_writer_wrote_is_read_back(path: Path, rows: list[tuple[str, str, str]]) -> None:
    text = io.StringIO()
    standard.writer(text, quoting=standard.QUOTE_ALL).writerows([COLUMNS, *rows])
    read, others = parsed(path, text.getvalue().encode())
    assert not others
    assert read == [tuple(value or None for value in row) for row in rows]


SIGNS = [b"\xef\xbb\xbf", b'"', b'""', b",", b"\r", b"\x00", b"\x01", b"\xff", b"\xc3", b"\x85", b" ", b"1a", b"NA"]
LINES = st.one_of(
    st.lists(st.sampled_from(SIGNS), max_size=12).map(b"".join),
    st.tuples(st.sampled_from([b"", *SIGNS]), st.sampled_from([b"1,2,3", b'"1",2,3', b'1,"2,2",3', b"1,2", b",,"])).map(
        b"".join
    ),
    st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")),
)


@pytest.mark.parametrize("block", [7, 40, lines.BLOCK])
@settings(max_examples=300, derandomize=True)
@given(st.lists(LINES, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_a_line_is_read_the_same_anywhere(block: int, path: Path, many: list[bytes], end: bytes, ended: bool) -> None:
    """Alone, first, last and between any others, whatever the bytes and wherever blocks end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LONGEST", 30)
        alone = [parsed(path, b"a,b,c\n" + line) for line in many]
        patch.setattr(lines, "BLOCK", block)
        rows, others = parsed(path, end.join([b"a,b,c", *many]) + end * ended)
    assert rows == [row for found, _ in alone for row in found]
    assert others == sum(odd for _, odd in alone)


def test_arrow_alone_lets_a_quote_swallow_the_lines_that_follow(path: Path) -> None:
    """The broken twin."""
    data = b'a,b,c\n1,"Quote,3\n' + b"x,y,z\n" * 5 + b'4,5",6\n'
    path.write_bytes(data)
    assert len(pa.csv.read_csv(path)) == 1
    assert len(parsed(path, data)[0]) == 5


def test_a_stray_quote_costs_no_other_record(tmp_path: Path) -> None:
    rows = [",".join(map(str, row.values())) for row in records(300).to_pylist()]
    stray = '1,"Quote,311111,01001,1'
    for rule in ("drop", "refuse"):
        tables = []
        for name, extra in (("without", []), ("with", [stray])):
            folder = tmp_path / rule / name
            plan = write_world(folder, None, dataset={"bad_records": rule})
            (folder / "microdata").mkdir()
            text = "\n".join([",".join(records(0).schema.names), *rows[:150], *extra, *rows[150:]])
            (folder / "microdata" / "all.csv").write_text(text)
            place = Place(plan, folder)
            if rule == "refuse" and extra:
                with pytest.raises(MicrodataError, match="a line of a CSV file is no record"):
                    submit(place)
                continue
            published = submit(place)
            files = sorted((place.out / "small-release" / published.attempt / "tables").rglob("*.parquet"))
            tables.append([file.read_bytes() for file in files])
        assert rule == "refuse" or tables[0] == tables[1]


@pytest.mark.parametrize("duplicates", ["trust", "combine"])
def test_a_record_that_begins_with_a_mark_is_bad_in_any_place(duplicates: str, tmp_path: Path) -> None:
    """Arrow strips a byte-order mark from what it reads: taken away, another record would let this one count."""
    table = records(20).select(["naics", "county", "employment", "payroll", "establishment_id"])
    rows = [",".join(map(str, row.values())) for row in table.to_pylist()]
    marked = "\ufeff" + rows[0].replace("E0", "E20")
    tables = []
    for name, order in {"without": rows, "first": [marked, *rows], "last": [*rows, marked]}.items():
        folder = tmp_path / name
        plan = write_world(folder, None, dataset={"bad_records": "drop", "duplicates": duplicates})
        (folder / "microdata").mkdir()
        (folder / "microdata" / "all.csv").write_text("\n".join([",".join(table.schema.names), *order]))
        place = Place(plan, folder)
        published = submit(place)
        files = sorted((place.out / "small-release" / published.attempt / "tables").rglob("*.parquet"))
        tables.append([file.read_bytes() for file in files])
    assert tables[0] == tables[1] == tables[2]
