"""The fast half of the suite on another Python: `python -m tests.pythons 3.12`, in an environment of its own in .work.

The environment is made by `make`, so that what the README says installs there too.
"""

import subprocess
import sys
from pathlib import Path

from tests.support.needs import python_of

ROOT = Path(__file__).parents[1]
FAST = "accounting api corpus ledger losses mechanisms microdata numbers operations plan records storage wheel"
ENGINES = ("tests/engines/test_parity.py", "tests/engines/test_engine_dask.py", "tests/release/test_release.py")


def main() -> int:
    version = sys.argv[1]
    own = ROOT / ".work" / "pythons" / version
    places = (f"BIN={own}/bin", f"CORE={own}/.core", f"READY={own}/.ready")
    own.parent.mkdir(parents=True, exist_ok=True)
    python = python_of(version)
    subprocess.run([python, "-m", "venv", own], check=True)
    subprocess.run(["make", "-s", "setup", f"PYTHON={python}", *places], cwd=ROOT, check=True)
    folders = [f"tests/{name}" for name in FAST.split()]
    tests = [own / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", *folders, *ENGINES]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
