"""What reconciliation is worth: variances of the whole programme with and without it, and the best split of a loss.

Variances are functions of the plan alone, so no release is made: conf/plans/cbp.yaml for a few states, whose synthetic
establishments (`prdp generate --like cbp-2011`) only say how large cells are. Printed: by table the variance of the
estimate over that of the released value (the mean of a sample of cells, each exact), and what could be saved of the
loss for the released variance, Gaussian noise losing 1/variance; by size of cell the share of cells with a relative
standard error below 30 %; and for a hierarchy of three levels the split of one loss over levels that makes the worst
error least, with and without reconciliation.

    python -m benchmarks.worth [--states CODES] [--statistics NAMES] [--cells N]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
from numpy.typing import NDArray
from scipy.optimize import minimize

from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.structure import Structure
from pipeline.planning.economy.like import generate_like
from pipeline.publication.public_totals import Atoms, measure_of
from pipeline.publication.release_folder import Source
from pipeline.publication.released_tables import Group, ReleasedTable, groups_of
from udfs.estimates.solve import Estimates, reconcile
from udfs.estimates.tables import Observed
from udfs.numbers.arrays import Floats

SIZES = (1, 10, 100, 1_000, 10_000)
USABLE = 0.3  # relative standard error
LEVELS = (1, 50, 3000)  # cells: a nation, states, counties


def main() -> None:
    """Print all tables."""
    given = _arguments()
    with tempfile.TemporaryDirectory(prefix="prdp-worth-") as name:
        made = generate_like("cbp-2011", 0, Path(name) / "data", states=given.states)
        plan = load_plan(made.plan)
        records = ds.dataset(made.plan.parent / "microdata").to_table().to_pandas()
    codes = _codes(plan, records)
    print(f"{len(records):,} establishments; states {', '.join(given.states)}")
    usable = "usable of 10 to 99, 100 to 999, …: released → reconciled"
    print(f"{'table':22}{'cells':>9}{'variance':>10}{'saved':>7}   {usable}")
    for group in groups_of(tables_of(plan)):
        if measure_of(group.statistic) in given.statistics and len(group.tables) > 1:
            _show(group, codes, records, given.cells)
    _splits()


def tables_of(plan: Plan) -> list[ReleasedTable]:
    """Return the measured tables of a plan as if they were released."""
    structure = Structure.of(plan)
    tables = []
    for query in plan.queries:
        facts = structure.tables[query.name]
        cells = facts.cells(plan.domain)
        source = Source(query.name, None, (), cells.size, query.by, {})  # type: ignore[arg-type]  # nothing is read
        mechanisms = {part.name: part.mechanism for part in query.parts}
        tables.append(ReleasedTable(source, facts, plan.domain, cells, mechanisms))
    return tables


def _show(group: Group, codes: dict[int, NDArray[np.int64]], records: object, sample: int) -> None:
    """Print a line for each table of a group."""
    atoms, estimates = solved(group)
    told = ", ".join(sorted(group.keys))
    print(f"{group.label}, of records with a listed code in {told}: {atoms.size:,} finest common cells")
    draw = np.random.default_rng(0)
    for table in group.tables:
        variance = np.broadcast_to(table.variance(None), table.cells.shape).ravel()
        chosen = np.sort(draw.choice(table.cells.size, min(sample, table.cells.size), replace=False))
        best = np.array([_exact(atoms, estimates, table, cell) for cell in chosen.tolist()])
        ratio = float(np.mean(best / variance[chosen]))
        weights = None if group.statistic.measure is None else records[group.statistic.measure]  # type: ignore[index]
        at = table.cells.of_codes(codes)
        totals = np.bincount(at[at >= 0], None if weights is None else weights[at >= 0], table.cells.size)
        shares = []
        for low, high in zip(SIZES[1:], (*SIZES[2:], np.inf), strict=True):
            cells = (totals >= low) & (totals < high)
            if cells.any():
                before = np.mean(np.sqrt(variance[cells]) < USABLE * totals[cells])
                after = np.mean(np.sqrt(variance[cells] * ratio) < USABLE * totals[cells])
                shares.append(f"{100 * before:.0f} → {100 * after:.0f} %")
        print(f"{table.name:22}{table.cells.size:9,}{ratio:10.3f}{100 * (1 - ratio):6.0f}%   {'; '.join(shares)}")


def solved(group: Group) -> tuple[Atoms, Estimates]:
    """Return a group's base and the estimates of values that are all 0, whose variances are those of any."""
    atoms = Atoms.of(group.tables[0].domain, {each.name: each.cells for each in group.tables})
    observed = [
        Observed(
            each.name,
            atoms.positions(each.cells),
            (widths := atoms.widths(each.cells)),
            np.zeros(widths),
            atoms.placed(each.cells, each.variance(None)),
        )
        for each in group.tables
    ]
    return atoms, reconcile(observed, unit=0.001)


def _exact(atoms: Atoms, estimates: Estimates, table: ReleasedTable, cell: int) -> float:
    """Return the variance of the estimate of one cell."""
    one = np.zeros(table.cells.size)
    one[cell] = 1
    placed = atoms.placed(table.cells, one)
    here = np.unravel_index(np.argmax(placed), placed.shape)
    inside = zip(atoms.positions(table.cells), here, strict=True)
    return estimates.contrast(tuple((positions == code).astype(np.float64) for positions, code in inside)).variance


def _codes(plan: Plan, records: object) -> dict[int, NDArray[np.int64]]:
    """Return the index of each record's finest code by key."""
    codes = {}
    for number, key in enumerate(plan.domain.dimensions):
        if key.classes is not None:
            lowest = [float(low) for low in key.classes.lowest]
            codes[number] = np.searchsorted(lowest, records[key.classes.measure], side="right") - 1  # type: ignore[index]
        else:
            index = key.index(key.level)
            column = records[plan.dataset.keys[key.key]]  # type: ignore[index]
            codes[number] = column.map(index).fillna(-1).to_numpy(np.int64)
    return codes


def _splits() -> None:
    """Print the best split of a loss over a nation, its states and their counties, with and without reconciliation.

    Gaussian noise: a level with the share s of the loss has the variance 1/s. What is made least is the largest
    variance over what is wanted: the same of all cells, or of larger cells more.
    """
    print("\nbest split of a loss over a nation, 50 states and 3,000 counties of Gaussian noise, and variances")
    for power, told in ((0, "equal variances"), (1, "variances as sizes of cells"), (2, "equal relative errors")):
        wanted = np.array([(LEVELS[-1] / cells) ** power for cells in LEVELS])
        for reconciled in (False, True):
            shares = _best_split(wanted, reconciled)
            variances = _reconciled(1 / shares) if reconciled else 1 / shares
            print(
                f"{told}, {'reconciled' if reconciled else 'released'}: "
                f"{', '.join(f'{100 * share:.2f} %' for share in shares)}; "
                f"variances {', '.join(f'{each:.3g}' for each in variances)}"
            )


def _best_split(wanted: Floats, reconciled: bool) -> Floats:
    """Return the shares of the levels that make the largest variance, over what is wanted, least."""

    def worst(logs: Floats) -> float:
        shares = np.exp(logs) / np.exp(logs).sum()
        variances = _reconciled(1 / shares) if reconciled else 1 / shares
        return float(np.max(np.log(variances / wanted)))

    starts = (np.log(1 / wanted), np.zeros(3), np.log([0.01, 0.05, 0.94]))
    exact = {"xatol": 1e-6, "fatol": 1e-8, "maxiter": 5000}
    found = min((minimize(worst, each, method="Nelder-Mead", options=exact) for each in starts), key=lambda r: r.fun)
    shares: Floats = np.exp(found.x) / np.exp(found.x).sum()
    return shares


def _reconciled(variances: Floats) -> Floats:
    """Return the variances of the estimates of a nation, its states and their counties (Hay et al. 2010)."""
    states, counties = LEVELS[1], LEVELS[2] // LEVELS[1]
    nation, state, county = variances
    up_state = 1 / (1 / state + 1 / (counties * county))
    best_nation = 1 / (1 / nation + 1 / (states * up_state))
    best_state = up_state - up_state**2 / (states * up_state) ** 2 * (states * up_state - best_nation)
    parent = counties * county
    best_county = county - (county / parent) ** 2 * (parent - best_state)
    return np.array([best_nation, best_state, best_county])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--states", nargs="+", default=["44", "56"], help="two-digit codes (default: 44 56)")
    parser.add_argument("--statistics", nargs="+", default=["records", "employment"])
    parser.add_argument("--cells", type=int, default=5, help="cells of each table whose variance is computed exactly")
    return parser.parse_args()


if __name__ == "__main__":
    main()
