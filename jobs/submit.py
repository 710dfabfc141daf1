"""For spark-submit: commands of prdp on Spark, and prdp's own packages in one file for the workers.

    python -m jobs.submit pack FILE.zip
    spark-submit --py-files FILE.zip jobs/submit.py check|diagnose|reconcile [its options]

What check and diagnose find is confidential, as are the logs of the executors.
"""

import sys
import zipfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from jobs.cli import main

PACKAGES = ("udfs", "pipeline", "prdp", "jobs")
CONF = Path(__file__).resolve().parents[1] / "conf"
LISTS = ("codes", "maps", "products")  # the driver reads a plan's vintage, names of codes and boundaries from them
LEFT_OUT = "__pycache__"


def pack(target: Path) -> None:
    """Write the zip file `target`: the same code gives the same bytes.

    The libraries that prdp uses must be installed on the workers.
    """
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for name, content in sorted(_files(files(package), package)):
                archive.writestr(zipfile.ZipInfo(name), content)
        for folder in LISTS:
            for name, content in sorted(_files(CONF / folder, f"conf/{folder}")):
                archive.writestr(zipfile.ZipInfo(name), content)


def _files(folder: Traversable, name: str) -> list[tuple[str, bytes]]:
    contents = []
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != LEFT_OUT:
            contents += _files(entry, f"{name}/{entry.name}")
        elif entry.is_file():
            contents.append((f"{name}/{entry.name}", entry.read_bytes()))
    return contents


if __name__ == "__main__":
    if sys.argv[1] == "pack":
        pack(Path(sys.argv[2]))
    else:
        sys.exit(main([sys.argv[1], "--engine", "spark", *sys.argv[2:]]))
