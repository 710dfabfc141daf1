"""What the public documents state of classes with noise of their own, and of the test of records left out."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from pipeline.accounting.left_out import LeftOutTest
from pipeline.base.html import Table, rendered
from pipeline.plan.total_policy import left_out_test_of, limits_of, policy_of
from pipeline.publication.description import Description
from pipeline.publication.policy_document import guarantee
from pipeline.publication.site.site_pages import report_page
from pipeline.storage.local import LocalPath
from tests.support import studies
from tests.support.keyed import Asked, Classes, World
from tests.support.plans import changed, load

NARROW_BELOW = Asked("employment", ("size",), {}, "size", {"0-2": 1, "others": 50})
ONE_NOISE = Asked("employment", ("size",), {}, None, {"others": 9})


@pytest.mark.parametrize("asked", [NARROW_BELOW, ONE_NOISE], ids=["classes", "one noise"])
def test_the_public_documents_bound_smaller_records_where_they_lose_more(tmp_path: Path, asked: Asked) -> None:
    world = World({"size": Classes("employment", (0, 3))}, (asked,))
    plan = world.plan(tmp_path, budget=[{"at": {"employment": 10, "payroll": 0}, "rho": 1000}])
    about, (limit,) = Description(plan, left_out_test_of(plan)), limits_of(plan)
    page = report_page(about, LocalPath(tmp_path / "none"))
    (at,) = about.policy["references"]
    if asked is ONE_NOISE:
        assert "no_larger" not in at
        assert "a smaller record loses no more" in page
        return
    rho = at["no_larger"]["rho"]
    assert rho == pytest.approx(2 + 1 / 20_000, rel=1e-12)  # two employees under noise of scale 1, and the test
    assert rho >= policy_of(plan).loss_at(limit.at) > 10 * at["total"]["rho"]
    assert "smaller record may lose more" in page
    assert "loses no more" not in page
    assert "all no larger, together" in page
    for owner in (None, "firm"):
        words = guarantee(owner, classes=True)["words"]
        assert "within the classes of a record's values" in words
        assert "within the classes of a record's values" not in guarantee(owner)["words"]


def test_a_release_states_the_losses_of_the_test_that_it_reserved(tmp_path: Path) -> None:
    """An older build reserved Gaussian tests for pure plans too: such a release has no pure loss."""
    laplace = {"kind": "laplace", "sigma": 20, "policy": "tight"}
    plan = load(tmp_path, changed([(("queries", number, "mechanism"), laplace) for number in range(3)]))
    assert left_out_test_of(plan).pure
    for test in (left_out_test_of(plan), LeftOutTest()):
        about = Description(plan, test)
        for at in about.policy["references"]:
            own, total = at["left_out_test"], at["total"]
            assert own["rho"] == pytest.approx(1 / 20_000, rel=1e-4)
            assert (own["epsilon"] is not None) == (total["epsilon"] is not None) == test.pure
            if test.pure:
                assert total["epsilon"] > own["epsilon"] == pytest.approx(1 / 100)
        totals = [at["total"]["rho"] for at in about.policy["references"]]
        assert [loss["rho"] for loss in about.facts["losses"]] == totals
    assert totals != [at["total"]["rho"] for at in Description(plan, left_out_test_of(plan)).policy["references"]]


# Pages: every text escaped, nothing loaded from elsewhere, and a value that a template misses is an error.

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
