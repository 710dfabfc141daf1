"""Two DAGs that release a plan with prdp, on Spark and on Dask; docs/airflow.md says how they are set up.

What the tasks run, and what the end of a command means, is decided in prdp_steps, beside this file. Airflow's
environment holds no prdp; its variables name the one whose commands are run.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Connection, Param, Variable, get_current_context, task
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)

from prdp_steps import (
    Done,
    Refused,
    Site,
    Unfinished,
    approved,
    relay,
    release_in,
    require_released,
    run,
    run_json,
)

CONNECTION = "prdp_spark"
RETRIES = 3
DAY = 24 * 3600
LONGEST = timedelta(hours=12)  # of a task; its process is then ended, and another try goes on from the ledger's state
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
    "hold": Param(
        False,
        type="boolean",
        title="Hold for approval",
        description="Publish nothing before a disclosure officer has approved it with prdp ledger approve.",
    ),
    "csv": Param(
        False,
        type="boolean",
        title="CSV too",
        description="Write every table as CSV beside the Parquet files.",
    ),
    "diagnostics": Param(
        False,
        type="boolean",
        title="Confidential diagnostics",
        description="Afterwards compare the release with the microdata, in the private folder of variable "
        "prdp_diagnostics. The ledger records it; a plan tuned on it is outside the guarantee.",
    ),
}

log = logging.getLogger("prdp")


class Step:
    """The task that is under way: its parameters, its site, and how it calls prdp."""

    def __init__(self) -> None:
        context: Any = get_current_context()
        self.ti, self.params = context["ti"], context["params"]
        self.site = Site.of(lambda name: Variable.get(name, default=None))
        user = context["dag_run"].triggering_user_name
        by = f" by {user}" if user else ""
        self.environment = self.site.environment(f"airflow {self.ti.dag_id} {self.ti.run_id}{by}")

    @property
    def release(self) -> str:
        """The release's name, as check_budget read it from the plan."""
        return str(self.ti.xcom_pull(task_ids="check_budget"))

    def run(self, *arguments: str) -> Done:
        """Run a command of prdp."""
        return run(self.site.command(*arguments), self.environment, log.info)

    def run_json(self, *arguments: str) -> Any:
        """Run a command of prdp and return the JSON that it prints."""
        return run_json(self.site.command(*arguments, "--json"), self.environment, log.info)

    def ledger_state(self) -> Any:
        """Return the ledger's entry for the release, None if it was never reserved."""
        return release_in(self.run_json("ledger", "show", *self.site.ledger_option()), self.release)

    def check(self) -> Any:
        """Return the plan's release as the ledger would treat it: its name, and its state if it is reserved."""
        return self.run_json("ledger", "check", self.site.plan(self.params["plan"]), *self.site.location_options())

    def make_release(self, run: Callable[[list[str]], Done]) -> None:
        """Release by `run`, or continue where another try stopped; a published release is left as it is.

        However the process ends, the ledger must show the release as published or held.
        """
        checked = self.check()
        if checked["release"] != self.release:
            raise Refused("the plan names another release now: clear the run from its first task")
        if checked["state"] == "settled":
            log.info("release %s: is published already", self.release)
            return
        done = run(self.site.release(self.params["plan"], hold=self.params["hold"], csv=self.params["csv"]))
        log.info("release %s: %s", self.release, require_released(done, self.ledger_state()))

    def diagnose_arguments(self) -> list[str]:
        """Return the arguments of diagnostics, in a folder that no other try uses; skip unless requested."""
        if not self.params["diagnostics"]:
            raise AirflowSkipException("not requested")
        published = f"{self.ledger_state()['out']}/{self.release}"
        return self.site.diagnose(self.params["plan"], published, f"{self.ti.run_id}-{self.ti.try_number}")


@contextmanager
def step() -> Iterator[Step]:
    """Yield the task's step; where prdp refused, fail the task without retries, otherwise let it be retried."""
    try:
        yield Step()
    except Refused as refused:
        raise AirflowFailException(str(refused)) from None
    except Unfinished as unfinished:
        raise AirflowException(str(unfinished)) from None


@task
def check_plan() -> None:
    """Check the plan alone: nothing is reserved, no record is read."""
    with step() as this:
        this.run_json("explain", this.site.plan(this.params["plan"]))
        log.info("the plan is valid")


@task
def check_budget() -> str:
    """Ask the ledger whether it would reserve the release, and return its name: nothing is reserved."""
    with step() as this:
        checked = this.check()
        log.info("release %s: %s", checked["release"], checked["state"] or "fits the budget")
        return str(checked["release"])


@task.sensor(mode="reschedule", poke_interval=30, timeout=30 * DAY)
def wait_for_approval() -> bool:
    """Wait until a held release is approved: only the ledger can say so."""
    with step() as this:
        return approved(this.ledger_state())


@task
def publish() -> None:
    """Publish what an officer approved with `--record-only`; all else is published by now."""
    with step() as this:
        if not approved(this.ledger_state()):
            raise Refused("the release is held: an officer must approve it; then clear wait_for_approval")
        this.make_release(lambda arguments: this.run("release", *arguments))


@task
def verify() -> None:
    """Check that the published files are those of the manifest, and the manifest what the ledger's chain says."""
    with step() as this:
        published = f"{this.ledger_state()['out']}/{this.release}"
        this.run_json("ledger", "verify", "--release", published, *this.site.ledger_option())
        log.info("what is published is what the ledger says")


@task(task_id="release")
def release_on_dask() -> None:
    """Release on Dask, or go on where another try stopped."""
    with step() as this:
        this.make_release(lambda arguments: this.run("release", *arguments, *this.site.dask()))


@task(task_id="diagnose")
def diagnose_on_dask() -> None:
    """Write confidential diagnostics to the private folder, if requested."""
    with step() as this:
        done = this.run("diagnose", *this.diagnose_arguments(), *this.site.dask())
        if done.code != 0:
            raise done.failure()


def require_client_mode() -> None:
    """Return if the connection runs the driver here: without a connection the provider would choose YARN."""
    try:
        mode = Connection.get(CONNECTION).extra_dejson.get("deploy-mode")
    except AirflowNotFoundException:
        raise Refused(f"Airflow has no connection {CONNECTION}: it names Spark's master") from None
    if mode not in (None, "client"):
        raise Refused(f"Airflow's connection {CONNECTION}: its deploy-mode must be client")


class SubmitStep(SparkSubmitOperator):
    """A task that runs a script of jobs/ by spark-submit and logs only prdp's own lines of its output."""

    def __init__(self, *, script: str, **settings: Any) -> None:
        super().__init__(conn_id=CONNECTION, name="prdp", **settings)
        self.script = script

    def submit(self, this: Step, arguments: list[str], context: Any) -> Done:
        """Run the script to its end; how it ended is returned, not raised."""
        require_client_mode()
        site, errors = this.site, []
        self.application = f"{site.home}/jobs/{self.script}.py"
        self.application_args = arguments
        self.env_vars = this.environment  # spark-submit is searched for on its PATH
        self.properties_file = site.spark_conf or f"{site.home}/conf/spark/local.conf"
        self.py_files = site.py_files
        hook = self._hook = self._get_hook()
        if not hasattr(hook, "_process_spark_submit_log"):
            raise Refused("this version of Airflow's Spark provider would log what Spark says, which is confidential")
        hook._process_spark_submit_log = lambda lines: errors.extend(relay(lines, log.info))
        try:
            super().execute(context)
        except AirflowException:  # its message repeats Spark's output
            return Done(getattr(hook._submit_sp, "returncode", None), errors=errors)
        return Done(0, errors=errors)


class ReleaseOnSpark(SubmitStep):
    """Releases on Spark, or continues where another try stopped."""

    def execute(self, context: Any) -> None:
        """Release; the ledger says how it ended."""
        with step() as this:
            this.make_release(lambda arguments: self.submit(this, arguments, context))


class DiagnoseOnSpark(SubmitStep):
    """Writes confidential diagnostics to the private folder, if requested."""

    def execute(self, context: Any) -> None:
        """Diagnose."""
        with step() as this:
            done = self.submit(this, this.diagnose_arguments(), context)
            if done.code != 0:
                raise done.failure()


def release_dag(name: str, release: Any, diagnose: Any) -> DAG:
    """Return the DAG in which `release` and `diagnose` make the tasks of an engine."""
    with DAG(
        name,
        schedule=None,
        params=PARAMS,
        default_args={"retries": RETRIES, "execution_timeout": LONGEST},
        doc_md=ABOUT,
        tags=["prdp"],
        catchup=False,
    ) as dag:
        check_plan() >> check_budget() >> release() >> wait_for_approval() >> publish() >> verify() >> diagnose()
    return dag


prdp_release = release_dag(
    "prdp_release",
    lambda: ReleaseOnSpark(task_id="release", script="release"),
    lambda: DiagnoseOnSpark(task_id="diagnose", script="diagnose"),
)
prdp_release_dask = release_dag("prdp_release_dask", release_on_dask, diagnose_on_dask)
