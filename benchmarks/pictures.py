"""Pictures of the product's own pages for docs/guide: a table's page, the officers' page, the page to play with.

`python -m benchmarks.pictures` makes them of synthetic microdata, in Chromium without a window, which must be
installed. Nothing is confidential; figures differ from run to run, since noise does.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml
from PIL import Image

from jobs.cli import main as prdp

TARGET = Path(__file__).parents[1] / "docs" / "guide"
WIDTH = 900
COLOURS = 64  # few enough that a picture has some 50 kB
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SHOWN = "/srv/prdp"  # the folder that pages name, in place of a temporary one


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, (page, height) in pages(home).items():
            text = page.read_text(encoding="utf-8")
            page.write_text(text.replace(folder, SHOWN), encoding="utf-8")
            picture(page, TARGET / f"{name}.png", height)


def pages(home: Path) -> dict[str, tuple[Path, int]]:
    """Return by name pages of a world in `home`, each with the height of what is shown of it."""
    run("generate", "--records", 300_000, "--seed", 1, "--out", home / "data")
    ledger = ("--ledger", home / "ledger" / "ledger.sqlite")
    (home / "ledger").mkdir()
    run("ledger", "create", ledger[1])
    run("release", home / "data/plan.yaml", *ledger, "--out", home / "releases", "--operator", "ruth")
    plan = yaml.safe_load((home / "data/plan.yaml").read_text(encoding="utf-8"))
    states = plan["queries"][-1] | {"mechanism": {"kind": "laplace", "sigma": 2000, "policy": "tight"}}
    (home / "data/states.yaml").write_text(yaml.safe_dump(plan | {"release": "cbp-states", "queries": [states]}))
    run("release", home / "data/states.yaml", *ledger, "--out", home / "releases", "--operator", "ruth", "--hold")
    run("ledger", "page", *ledger, "--out", home / "officers.html")
    run("try", home / "data/plan.yaml", "--draws", 4, "--page", home / "try.html")
    (table,) = home.glob("releases/*/*/site/tables/employment_naics2_state.html")
    return {"page": (table, 1180), "officers": (home / "officers.html", 1620), "try": (home / "try.html", 1000)}


def run(*words: object) -> None:
    if prdp([str(word) for word in words]) != 0:
        raise SystemExit(f"prdp {words[0]} failed")


def picture(page: Path, target: Path, height: int) -> None:
    """Write the top of a page, as a browser shows it, as a small PNG."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("no Chromium: install it")
    size = ("--hide-scrollbars", f"--window-size={WIDTH},{height}", f"--screenshot={target}")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000")
    subprocess.run([browser, *options, *size, page.as_uri()], check=True, capture_output=True)
    with Image.open(target) as shot:
        shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main()
