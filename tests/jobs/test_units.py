"""The units of conf/systemd: systemd itself finds nothing wrong with them."""

import subprocess
import sys
from pathlib import Path

from tests.support.needs import program

UNITS = sorted((Path(__file__).parents[2] / "conf" / "systemd").glob("*.service"))


def test_systemd_takes_the_units_and_not_broken_ones(tmp_path: Path) -> None:
    assert len(UNITS) == 4
    here = {unit.name: unit.read_text().replace("/opt/prdp/bin", str(Path(sys.executable).parent)) for unit in UNITS}
    for name, text in here.items():
        for broken in (text, text.replace("UMask", "Umsk"), text.replace("ExecStart=/", "ExecStart=/nowhere/")):
            (tmp_path / name).write_text(broken)
            done = subprocess.run(
                [program("systemd-analyze"), "verify", tmp_path / name], capture_output=True, text=True, check=False
            )
            assert ((done.returncode, done.stderr) == (0, "")) == (broken == text), done.stderr
