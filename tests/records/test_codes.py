import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.records.codes import NAICS_LEVELS, SECTOR_RANGES, is_code, roll_up

RECORD_NAICS = st.from_regex(r"[0-9]{6}", fullmatch=True).filter(lambda code: code[:2] != "00")
PARTS = {"31-33": {"31", "32", "33"}, "44-45": {"44", "45"}, "48-49": {"48", "49"}}


# Arabic digits, a superscript and a full-width digit are digits to str.isdigit.
@pytest.mark.parametrize(
    ("level", "well_formed", "malformed"),
    [
        (
            "naics6",
            ["311111", "999999", "110000", "010000"],
            ["", *["31111", "3111111", "31-333", "00111", "001111", "31111x"], " 11111", "11111 ", "1111\n1"],
        ),
        ("naics6", [], ["٣١١١١١", "31111²", "31111１"]),
        ("county", ["01001", "00000"], ["1001", "010011", "0100a", "٠١٠٠١", ""]),
    ],
)
def test_codes_of_records(level: str, well_formed: list[str], malformed: list[str]) -> None:
    assert [code for code in well_formed + malformed if is_code(code, level)] == well_formed


@pytest.mark.parametrize(
    ("code", "level", "whether"),
    [
        ("31-33", "naics2", True),
        ("31", "naics2", False),
        ("42", "naics2", True),
        ("00", "naics2", False),
        ("311", "naics3", True),
        ("31-33", "naics3", False),
        ("01", "state", True),
        ("00", "state", True),
        ("1", "state", False),
        ("US", "nation", True),
        ("us", "nation", False),
        ("01001", "county", True),
        ("other", "naics2", False),
        ("other", "county", False),
    ],
)
def test_codes_by_level(code: str, level: str, whether: bool) -> None:
    assert is_code(code, level) is whether


@pytest.mark.parametrize(
    ("code", "level", "coarse"),
    [
        ("311111", "naics2", "31-33"),
        ("3111", "naics2", "31-33"),
        ("31-33", "naics2", "31-33"),
        ("445110", "naics2", "44-45"),
        ("491110", "naics2", "48-49"),
        ("111110", "naics2", "11"),
        ("311111", "naics3", "311"),
        ("01001", "county", "01001"),
        ("01001", "state", "01"),
        ("01001", "nation", "US"),
        ("other", "naics2", "other"),
        ("other", "state", "other"),
        ("other", "nation", "US"),
    ],
)
def test_roll_up(code: str, level: str, coarse: str) -> None:
    assert roll_up(code, level) == coarse


@pytest.mark.parametrize(
    ("code", "level"), [("311", "naics4"), ("31-33", "naics3"), ("01", "county"), ("", "state"), ("1", "naics2")]
)
def test_a_code_too_coarse_to_roll_up(code: str, level: str) -> None:
    with pytest.raises(ValueError, match="digits is needed"):
        roll_up(code, level)


@pytest.mark.parametrize("level", ["naics1", "naics7", "region", ""])
def test_unknown_levels(level: str) -> None:
    for attempt in (lambda: roll_up("311111", level), lambda: is_code("31", level)):
        with pytest.raises(ValueError, match="unknown level"):
            attempt()


@given(code=RECORD_NAICS)
def test_roll_ups_are_well_formed_and_nested(code: str) -> None:
    for fine, coarse in zip(NAICS_LEVELS[1:], NAICS_LEVELS, strict=False):
        assert is_code(roll_up(code, fine), fine)
        assert is_code(roll_up(code, coarse), coarse)
        assert roll_up(roll_up(code, fine), coarse) == roll_up(code, coarse)


def test_sector_ranges_are_the_only_codes_that_are_no_prefix() -> None:
    for sector in range(1, 100):
        digits = f"{sector:02d}"
        rolled = roll_up(digits + "1111", "naics2")
        assert rolled == SECTOR_RANGES.get(digits, digits)
        assert digits in PARTS.get(rolled, {digits})


@given(codes=st.lists(RECORD_NAICS, min_size=2))
def test_codes_sort_like_their_roll_ups(codes: list[str]) -> None:
    for level in NAICS_LEVELS:
        rolled = [roll_up(code, level) for code in sorted(codes)]
        assert rolled == sorted(rolled)
