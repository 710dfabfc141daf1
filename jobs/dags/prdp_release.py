"""Two DAGs that release a plan with prdp, on Spark and on Dask, and `release_dag`, which makes others.

docs/airflow.md says how they are set up, and how a site schedules its own.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset, AssetAlias, Param
from prdp_operators import (
    CheckBudgetStep,
    CheckPlanStep,
    DiagnoseStep,
    PrdpApprovalSensor,
    PublishStep,
    ReleaseStep,
    VerifyStep,
)

RETRIES = 3
LONGEST = timedelta(hours=12)  # of a try, whose processes are then ended; the next goes on from the ledger's state
MAX_DELAY = timedelta(hours=1)  # between two tries
RELEASES = "prdp_releases"  # the alias of the assets that releases become
ABOUT = """Releases the tables of a plan under per-record differential privacy.

Every task may be retried or cleared at any time: at most one draw is ever published, and a release that is published
already succeeds at once. A held release waits until an officer approves it with `prdp ledger approve`, outside Airflow.
"""
PARAMS = {
    "plan": Param(
        "plan.yaml",
        type="string",
        title="Plan",
        description="The plan to release: a YAML file, by its path below the folder of plans (variable prdp_plans).",
        pattern=r"^(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_./-]*\.ya?ml$",
    ),
    "set": Param(
        {},
        type="object",
        title="Values of the plan's variables",
        description='As text, such as {"year": "2026"}; none for a plan without variables.',
        additionalProperties={"type": "string"},
    ),
    "hold": Param(
        False,
        type="boolean",
        title="Hold for approval",
        description="Publish nothing before a disclosure officer has approved it with prdp ledger approve.",
    ),
    "csv": Param(
        False, type="boolean", title="CSV too", description="Write every table as CSV beside the Parquet files."
    ),
    "diagnostics": Param(
        False,
        type="boolean",
        title="Confidential diagnostics",
        description="Afterwards compare the release with the microdata, in the private folder of variable "
        "prdp_diagnostics. The ledger records it; a plan tuned on it is outside the guarantee.",
    ),
}
ASKED: dict[str, Any] = {  # what a run's parameters say, in the place of what release_dag is given
    "plan": "{{ params.plan }}",
    "set": "{{ params.set | tojson }}",
    "hold": "{{ params.hold }}",
    "csv": "{{ params.csv }}",
    "diagnostics": "{{ params.diagnostics }}",
}


def release_dag(
    name: str,
    *,
    plan: str,
    set: Mapping[str, str] | str | None = None,
    engine: str = "dask",
    hold: bool | str = False,
    csv: bool | str = False,
    diagnostics: bool | str = False,
    asset: Asset | None = None,
    pool: str | None = None,
    **settings: Any,
) -> DAG:
    """Return a DAG that releases one plan: checks, release, approval, publication, verification, diagnostics.

    Runs follow each other, and none is made for the past.

    Args:
        name: Its id.
        plan: The plan, by its path below the folder of plans.
        set: The values of the plan's variables; they may be templates.
        engine: "dask" or "spark".
        hold, csv, diagnostics: As the parameters of the DAG prdp_release; they may be templates.
        asset: The asset that a verified release updates. Default: one of its own, under the alias prdp_releases.
        pool: The pool of the tasks that release: one slot a dataset, where several DAGs release it.
        **settings: Of the DAG: schedule, deadline, on_failure_callback, params, and so on; `default_args` of its tasks,
            such as execution_timeout (LONGEST), retries and retry_delay.
    """
    about: dict[str, Any] = {"plan": plan, "set": set, "engine": engine}
    named = about | {"release": "{{ ti.xcom_pull(task_ids='check_budget') }}"}
    released = named | {"hold": hold, "csv": csv, "pool": pool}
    tried = {"retries": RETRIES, "retry_exponential_backoff": 2, "max_retry_delay": MAX_DELAY}
    tried |= {"execution_timeout": LONGEST} | settings.pop("default_args", {})
    with DAG(
        name,
        **{"schedule": None, "max_active_runs": 1, "default_args": tried, "doc_md": ABOUT, "tags": ["prdp"]} | settings,
        catchup=False,
    ) as dag:
        (
            CheckPlanStep(task_id="check_plan", **about)
            >> CheckBudgetStep(task_id="check_budget", **about)
            >> ReleaseStep(task_id="release", max_active_tis_per_dag=1, **released)
            >> PrdpApprovalSensor(task_id="wait_for_approval", **named)
            >> PublishStep(task_id="publish", max_active_tis_per_dag=1, **released)
            >> VerifyStep(task_id="verify", outlets=[asset or AssetAlias(RELEASES)], **named)
            >> DiagnoseStep(task_id="diagnose", diagnostics=diagnostics, **named)
        )
    return dag


# Runs of different plans do not wait for each other: only their tasks that release do.
prdp_release = release_dag("prdp_release", engine="spark", params=PARAMS, max_active_runs=16, **ASKED)
prdp_release_dask = release_dag("prdp_release_dask", engine="dask", params=PARAMS, max_active_runs=16, **ASKED)
