"""Pages: every text escaped, nothing loaded from elsewhere, and a value that a template misses is an error."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from pipeline.base.html import Table, rendered
from tests.support import studies

HOSTILE = """<script src="http://evil.example/x.js">alert('1')</script>&"""


def page_of_a_release(text: str) -> str:
    table = Table([text, text], [[text, text]], numbers=[1])
    names = ("title", "dataset", "protection", "coverage", "unit", "of_losses", "composition", "plan_digest")
    return rendered(
        "release.html",
        **dict.fromkeys(names, text),
        **dict.fromkeys(("tables", "columns", "losses", "policies"), table),
        oddities=[text],
        largest=[(text, table)],
        guarantee={"words": text, "formula": text, "assumptions": [text]},
    )


def test_every_text_of_a_page_is_escaped() -> None:
    hostile, plain = page_of_a_release(HOSTILE), page_of_a_release("plain")
    assert "<script" not in hostile
    assert "&lt;script src=&#34;http://evil.example/x.js&#34;&gt;" in hostile
    assert hostile.count("<") == plain.count("<")  # no text makes an element
    assert "http" not in plain


def test_a_study_with_hostile_names_is_a_harmless_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies.without_pictures(monkeypatch)
    entries = [{"label": HOSTILE, "mechanism": {"kind": "gaussian"}}]
    panels = [{"name": "one", "title": HOSTILE, "entries": entries, "errors": True}]
    data = {"synthetic": "establishments", "records": 50}
    studies.evaluated(tmp_path, title=HOSTILE, data=data, panels=panels)
    page = (tmp_path / "out" / "study.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert page.count("&lt;script") > 5  # the title twice, the panel's, and the label in every table


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        rendered("release.html", title="only")
