"""CSV line by line: no record can change what becomes of another."""

import csv as standard
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.microdata import read
from pipeline.storage.paths import locate

COLUMNS = ["a", "b", "c"]


def parsed(path: Path, data: bytes) -> tuple[list[tuple[object, ...]], int]:
    """The records of a file of the columns a, b, c, and how many other lines stand beside them."""
    path.write_bytes(data)
    rows: list[tuple[object, ...]] = []
    others = 0
    for batch, odd in read.csv_records(locate(str(path)), COLUMNS):
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


@pytest.mark.parametrize("block", [7, 40, read.BLOCK])
@settings(max_examples=3 * settings.default.max_examples)
@given(st.lists(LINES, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_a_line_is_read_the_same_anywhere(block: int, path: Path, many: list[bytes], end: bytes, ended: bool) -> None:
    """Alone, first, last and between any others, whatever the bytes and wherever blocks end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "LONGEST", 30)
        alone = [parsed(path, b"a,b,c\n" + line) for line in many]
        patch.setattr(read, "BLOCK", block)
        rows, others = parsed(path, end.join([b"a,b,c", *many]) + end * ended)
    assert rows == [row for found, _ in alone for row in found]
    assert others == sum(odd for _, odd in alone)


def test_arrow_alone_lets_a_quote_swallow_the_lines_that_follow(path: Path) -> None:
    """The broken twin."""
    data = b'a,b,c\n1,"Quote,3\n' + b"x,y,z\n" * 5 + b'4,5",6\n'
    path.write_bytes(data)
    assert len(pa.csv.read_csv(path)) == 1
    assert len(parsed(path, data)[0]) == 5
