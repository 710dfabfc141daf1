"""What people read of plans whose classes of a measure have noise of their own: a smaller record may lose more."""

from pathlib import Path

import pytest

from pipeline.plan.total_policy import left_out_test_of, limits_of, policy_of
from pipeline.publication.policy_document import guarantee, public_policy
from pipeline.publication.site.report_page import report_page
from pipeline.storage.local import LocalPath
from tests.support.keyed import Asked, Classes, World

NARROW_BELOW = Asked("employment", ("size",), {}, "size", {"0-2": 1, "others": 50})
ONE_NOISE = Asked("employment", ("size",), {}, None, {"others": 9})


@pytest.mark.parametrize("asked", [NARROW_BELOW, ONE_NOISE], ids=["classes", "one noise"])
def test_the_public_documents_bound_smaller_records_where_they_lose_more(tmp_path: Path, asked: Asked) -> None:
    world = World({"size": Classes("employment", (0, 3))}, (asked,))
    plan = world.plan(tmp_path, budget=[{"at": {"employment": 10, "payroll": 0}, "rho": 1000}])
    told, (limit,) = public_policy(plan, left_out_test_of(plan)), limits_of(plan)
    page = report_page(plan, LocalPath(tmp_path / "none"), left_out_test_of(plan))
    (at,) = told["references"]
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
