"""Airflow's operators for prdp, for the DAGs beside this file and for an agency's own: docs/airflow.md.

`PrdpReleaseOperator` makes a whole release in one task; the others are its steps, for DAGs that show each. What they
run, and what the end of a command means, is decided in prdp_steps. Airflow's environment holds no prdp: its variables
name the one whose commands are run.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetAlias, BaseOperator, Connection, Variable
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
)
from airflow.triggers.base import BaseTrigger, TriggerEvent

from prdp_steps import (
    Done,
    Refused,
    Running,
    Site,
    Unfinished,
    approved,
    is_true,
    master_of,
    release_in,
    require_released,
    run,
    run_json,
    set_options,
    values_of,
    without_airflow,
)

CONNECTION = "prdp_spark"
ENGINES = ("dask", "spark")
LONGEST_WAIT = timedelta(days=30)  # for an officer
EVERY = 30  # seconds between two looks at the ledger

log = logging.getLogger("prdp")


class ApprovalTrigger(BaseTrigger):
    """Fires when the ledger no longer shows a release as waiting for an officer; runs in Airflow's triggerer.

    What it says decides nothing: the task that it wakes reads the ledger again.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], release: str, every: float) -> None:
        super().__init__()
        self.command, self.environment = list(command), dict(environment)
        self.release, self.every = release, every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return how Airflow makes it again."""
        arguments = {name: getattr(self, name) for name in ("command", "environment", "release", "every")}
        return "prdp_operators.ApprovalTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the ledger until the release is decided; where it cannot be read, look again."""
        while await self._waits():
            await asyncio.sleep(self.every)
        yield TriggerEvent("decided")

    async def _waits(self) -> bool:
        environment = without_airflow(os.environ) | self.environment
        nowhere = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *self.command, env=environment, stdin=nowhere, stdout=asyncio.subprocess.PIPE, stderr=nowhere
        )
        try:
            out, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        try:
            return process.returncode != 0 or not approved(release_in(json.loads(out), self.release))
        except Refused:
            return False


class Step:
    """A task that is under way: its plan, its site, and how it calls prdp."""

    def __init__(self, task: "PrdpOperator", context: Any) -> None:
        self.task, self.ti = task, context["ti"]
        self.site = Site.of(lambda name: task.site.get(name) or Variable.get(name, default=None))
        self.values = values_of(task.set)
        user = context["dag_run"].triggering_user_name
        by = f" by {user}" if user else ""
        self.environment = self.site.environment(f"airflow {self.ti.dag_id} {self.ti.run_id}{by}")
        self.tells = context.get("outlet_events", {})

    @property
    def release(self) -> str:
        """The release's name, as the task was told, or as the plan has it."""
        name = self.task.release
        return str(name) if name else str(self.check()["release"])

    def run_json(self, *arguments: str) -> Any:
        """Run a command of prdp and return the JSON that it prints."""
        return run_json(self.site.command(*arguments, "--json"), self.environment, log.info, self.task.running)

    def ledger_show(self) -> list[str]:
        """Return the arguments that show the ledger."""
        return ["ledger", "show", *self.site.ledger_option()]

    def ledger_state(self, release: str) -> Any:
        """Return the ledger's entry for the release, None if it was never reserved."""
        return release_in(self.run_json(*self.ledger_show()), release)

    def check(self) -> Any:
        """Return the plan's release as the ledger would treat it: its name, and its state if it is reserved."""
        plan = self.site.plan(self.task.plan)
        return self.run_json("ledger", "afford", plan, *set_options(self.values), *self.site.location_options())

    def run(self, command: str, arguments: Sequence[str]) -> Done:
        """Run a command over microdata on the task's engine."""
        name = f"{self.ti.dag_id}-{self.ti.run_id}-{self.ti.task_id}-{self.ti.try_number}"
        called = (
            self.site.on_spark(command, arguments, spark_master())
            if self.task.engine == "spark"
            else self.site.on_dask(command, arguments)
        )
        return run(called, self.environment, log.info, self.task.running, self.site.log_file(name))

    def make_release(self, *, hold: bool, csv: bool) -> str:
        """Release, or continue where another try stopped; return its name. A published release is left as it is.

        However the process ends, the ledger must show the release as published or held.
        """
        checked = self.check()
        name = str(checked["release"])
        if self.task.release and name != self.task.release:
            raise Refused("the plan names another release now: clear the run from its first task")
        if checked["state"] == "settled":
            log.info("release %s: is published already", name)
            return name
        done = self.run("release", self.site.release(self.task.plan, self.values, hold=hold, csv=csv))
        log.info("release %s: %s", name, require_released(done, self.ledger_state(name)))
        return name

    def verify(self, release: str) -> dict[str, str]:
        """Check the published files against the manifest, and that against the ledger's chain; return what they are."""
        state = self.ledger_state(release)
        published = f"{state['out']}/{release}"
        self.run_json("ledger", "verify", "--release", published, *self.site.ledger_option())
        log.info("what is published is what the ledger says")
        return {key: state[key] for key in ("release", "dataset", "attempt", "plan_digest")} | {"path": published}

    def tell(self, published: Mapping[str, str]) -> None:
        """Publish the release as the task's assets, with what its manifest says of it; an alias gets one of its own."""
        path = published["path"]
        for outlet in self.task.outlets:
            if isinstance(outlet, AssetAlias):
                uri = path if "://" in path else Path(path).as_uri()
                self.tells[outlet].add(Asset(name=f"prdp/{published['release']}", uri=uri), extra=dict(published))
            elif isinstance(outlet, Asset):
                self.tells[outlet].extra = dict(published)


def spark_master() -> str:
    """Return the master that the connection names: its driver runs here."""
    try:
        connection = Connection.get(CONNECTION)
    except AirflowNotFoundException:
        raise Refused(f"Airflow has no connection {CONNECTION}: it names Spark's master") from None
    return master_of(connection.host, connection.port, connection.extra_dejson)


@contextmanager
def refusals() -> Iterator[None]:
    """Where prdp refused, fail the task without retries; where it did not finish, let it be retried."""
    try:
        yield
    except Refused as refused:
        raise AirflowFailException(str(refused)) from None
    except Unfinished as unfinished:
        raise AirflowException(str(unfinished)) from None


class PrdpOperator(BaseOperator):
    """A task about one plan. A try that is ended ends the processes of prdp, too.

    Args:
        plan: The plan, by its path below the folder of plans.
        set: The values of its variables, a mapping or its JSON; values may be templates.
        engine: "dask" or "spark".
        release: The release's name, where another task found it; by default the plan is asked.
        site: In place of variables of Airflow, by name: {"prdp_ledger": …}.
    """

    template_fields: Sequence[str] = ("plan", "set", "release")
    ui_color = "#dfe9e2"

    def __init__(
        self,
        *,
        plan: str,
        set: Mapping[str, str] | str | None = None,
        engine: str = "dask",
        release: str | None = None,
        site: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if engine not in ENGINES:
            raise ValueError(f"engine: must be one of {', '.join(ENGINES)}")
        self.plan, self.set, self.engine, self.release = plan, set, engine, release
        self.site = dict(site or {})
        self.running = Running()

    def execute(self, context: Any) -> Any:
        """Do the task's step; the ledger says how it ended."""
        with refusals():
            return self.act(Step(self, context))

    def act(self, step: Step) -> Any:
        """Do the step."""
        raise NotImplementedError

    def finish(self, step: Step, release: str) -> Any:
        """Give the worker back until the release is decided, where it is held."""
        if approved(step.ledger_state(release)):
            return
        command = step.site.command(*step.ledger_show(), "--json")
        trigger = ApprovalTrigger(command, step.environment, release, EVERY)
        self.defer(trigger=trigger, method_name="resume", kwargs={"held": release}, timeout=LONGEST_WAIT)

    def resume(self, context: Any, held: str, event: Any = None) -> Any:
        """Go on once a held release is decided: the ledger says how."""
        with refusals():
            return self.finish(Step(self, context), held)

    def on_kill(self) -> None:
        """End the processes of prdp, also those of Spark's driver: what they left is finished by the next try."""
        self.running.end()


class PrdpReleaseOperator(PrdpOperator):
    """Makes a whole release: releases or holds it, waits for an officer without a worker, publishes, and verifies.

    Its outlets, Assets or AssetAliases, get an event once the release is verified. It returns the release's name.

    Guarantee: however often it is retried, cleared or killed, at most one draw is ever published.

    Args:
        hold: Publish nothing before an officer has approved.
        csv: Every table as CSV too.
    """

    template_fields = (*PrdpOperator.template_fields, "hold", "csv")

    def __init__(self, *, hold: bool | str = False, csv: bool | str = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.hold, self.csv = hold, csv

    def act(self, step: Step) -> Any:
        """Release, then finish."""
        return self.finish(step, self.released(step))

    def finish(self, step: Step, release: str) -> str:
        """Wait, publish what was approved, verify, and tell."""
        super().finish(step, release)
        self.released(step)
        step.tell(step.verify(release))
        return release

    def released(self, step: Step) -> str:
        """Release or hold, or go on where another try stopped; return the release's name."""
        return step.make_release(hold=is_true(self.hold), csv=is_true(self.csv))


class ReleaseStep(PrdpReleaseOperator):
    """Releases or holds, and no more."""

    def act(self, step: Step) -> None:
        """Release or hold."""
        self.released(step)


class PublishStep(PrdpReleaseOperator):
    """Publishes what an officer approved with `--record-only`; all else is published by now."""

    def act(self, step: Step) -> None:
        """Publish what is approved; refuse what is held."""
        if not approved(step.ledger_state(step.release)):
            raise Refused("the release is held: an officer must approve it; then clear wait_for_approval")
        self.released(step)


class CheckPlanStep(PrdpOperator):
    """Checks the plan alone: nothing is reserved, no record is read."""

    def act(self, step: Step) -> None:
        """Check the plan."""
        step.run_json("explain", step.site.plan(self.plan), *set_options(step.values))
        log.info("the plan is valid")


class CheckBudgetStep(PrdpOperator):
    """Asks the ledger whether it would reserve the release, and returns its name: nothing is reserved."""

    def act(self, step: Step) -> str:
        """Check the budget."""
        checked = step.check()
        log.info("release %s: %s", checked["release"], checked["state"] or "fits the budget")
        return str(checked["release"])


class PrdpApprovalSensor(PrdpOperator):
    """Waits until a held release is approved, in the triggerer: it holds no worker. Only the ledger can say so."""

    def act(self, step: Step) -> None:
        """Wait, or pass where the release is not held; fail where it never will be published."""
        self.finish(step, step.release)


class VerifyStep(PrdpOperator):
    """Checks that published files are those of the manifest, and that what the chain says; then tells its outlets."""

    def act(self, step: Step) -> None:
        """Verify and tell."""
        step.tell(step.verify(step.release))


class DiagnoseStep(PrdpOperator):
    """Writes confidential diagnostics to the private folder, if requested."""

    template_fields = (*PrdpOperator.template_fields, "diagnostics")

    def __init__(self, *, diagnostics: bool | str = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.diagnostics = diagnostics

    def act(self, step: Step) -> None:
        """Diagnose, in a folder that no other try uses."""
        if not is_true(self.diagnostics):
            raise AirflowSkipException("not requested")
        release = step.release
        published = f"{step.ledger_state(release)['out']}/{release}"
        folder = f"{step.ti.run_id}-{step.ti.try_number}"
        done = step.run("diagnose", step.site.diagnose(self.plan, step.values, published, folder))
        if done.code != 0:
            raise done.failure()
