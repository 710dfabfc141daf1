"""prdp: totals of establishment microdata under per-record differential privacy, for notebooks and scripts.

`__all__` is the public interface; every other package of this distribution is internal. Importing prdp loads no
engine, no pandas and no Arrow: each name loads what it needs when it is first used.

    >>> import prdp
    >>> plan = prdp.load_plan(prdp.generate(100, "example"))
    >>> explained = plan.explain(at={"employment": 10, "payroll": 500})
    >>> list(explained.losses.columns)
    ['query', 'at', 'influence', 'rho', 'epsilon']
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.base.errors import BudgetRefused, MicrodataError, PlanError, PrdpError, StateError
    from pipeline.publication.manifest import Verified
    from pipeline.publication.product.derived import Derived
    from prdp.calibration import (
        Calibrated,
        best_alpha,
        calibrate,
        compare,
        epsilon,
        frontier,
        gaussian_scales,
        group_scale,
        rho,
    )
    from prdp.explanation import Explanation
    from prdp.ledgers import Ledger, create_ledger, open_ledger
    from prdp.microdata import diagnose, prepare
    from prdp.plans import Allocation, Plan, allocate, load_plan
    from prdp.reconciled import Reconciled, derive, derive_table, read_reconciled, reconcile
    from prdp.releases import PublishedRelease, Release, product, read_release, site
    from prdp.runs import import_ledger
    from prdp.studies import (
        Design,
        beside_today,
        design,
        evaluate,
        generate,
        generate_like,
        suppression,
        withheld_today,
    )
    from prdp.trials import publication, try_plan
    from prdp.verified import create_key, doctor, verify, verify_product

HOMES = {
    "pipeline.base.errors": "BudgetRefused MicrodataError PlanError PrdpError StateError",
    "pipeline.publication.manifest": "Verified",
    "pipeline.publication.product.derived": "Derived",
    "prdp.calibration": "Calibrated best_alpha calibrate compare epsilon frontier gaussian_scales group_scale rho",
    "prdp.explanation": "Explanation",
    "prdp.runs": "import_ledger",
    "prdp.ledgers": "Ledger create_ledger open_ledger",
    "prdp.microdata": "diagnose prepare",
    "prdp.plans": "Allocation Plan allocate load_plan",
    "prdp.reconciled": "Reconciled derive derive_table read_reconciled reconcile",
    "prdp.releases": "PublishedRelease Release product read_release site",
    "prdp.verified": "create_key doctor verify verify_product",
    "prdp.studies": "Design beside_today design evaluate generate generate_like suppression withheld_today",
    "prdp.trials": "publication rank_kinds try_plan",
}
HOME_OF = {name: module for module, names in HOMES.items() for name in names.split()}
SUBMODULES = ("mechanisms", "spark")

__all__ = [
    "Allocation", "BudgetRefused", "Calibrated", "Derived", "Design", "Explanation", "Ledger", "MicrodataError",
    "Plan", "PlanError", "PrdpError", "PublishedRelease", "Reconciled", "Release", "StateError", "Verified",
    "__version__", "allocate", "beside_today", "best_alpha", "calibrate", "compare", "create_key", "create_ledger",
    "derive", "derive_table", "design", "diagnose", "doctor", "epsilon", "evaluate", "frontier", "gaussian_scales",
    "generate", "generate_like", "group_scale", "import_ledger", "load_plan", "mechanisms", "open_ledger",
    "prepare", "product", "publication", "rank_kinds", "read_reconciled", "read_release", "reconcile", "rho",
    "site", "spark", "suppression", "try_plan", "verify", "verify_product", "withheld_today",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in HOME_OF:
        value = getattr(import_module(HOME_OF[name]), name)
    elif name in SUBMODULES:
        value = import_module(f"prdp.{name}")
    elif name == "__version__":
        value = metadata.version("prdp")
    else:
        raise AttributeError(f"module 'prdp' has no attribute {name!r}; its public names are prdp.__all__")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
