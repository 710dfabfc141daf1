"""The pages of README.md, docs/ and conf/: their links lead somewhere, and they name files that exist."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES = [*TOP, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "conf").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FILE = re.compile(r"`((?:udfs|pipeline|prdp|jobs|conf|box|benchmarks|tests|docs)/(?![\w/]*NAME)[\w./-]+\.\w+)`")


def missing(page: Path, text: str) -> list[str]:
    links = [(link, page.parent / link) for link in LINK.findall(text) if "://" not in link]
    return [name for name, path in (*links, *((name, ROOT / name) for name in FILE.findall(text))) if not path.exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_and_names_is_there(page: Path) -> None:
    assert missing(page, page.read_text()) == []


def test_a_page_that_leads_nowhere_is_noticed() -> None:
    text = (
        "[a](nowhere.md) [b](mathematics.md#x) [c](https://example.org/) `pipeline/nowhere.py` `pipeline/base/log.py`"
    )
    assert missing(ROOT / "docs" / "page.md", text) == ["nowhere.md", "pipeline/nowhere.py"]


def test_an_installation_has_every_page_and_picture() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    installed = {path for patterns in settings["data-files"].values() for name in patterns for path in ROOT.glob(name)}
    assert {path for path in (ROOT / "docs").rglob("*") if path.is_file()} <= installed
    data = {path for name in settings["package-data"]["conf"] for path in (ROOT / "conf").glob(name)}
    assert ROOT / "conf" / "plan.schema.json" in data


def built(folder: Path, out: Path) -> int:
    """Build the site as `make docs` does; without -q, which would hide the warnings that strict mode counts."""
    build = [sys.executable, "-m", "mkdocs", "build", "-f", folder / "mkdocs.yml", "-d", out]
    return subprocess.run(build, capture_output=True, check=False, timeout=PATIENCE).returncode


def test_the_pages_are_a_site_that_asks_no_other_host(tmp_path: Path) -> None:
    assert built(ROOT, tmp_path / "site") == 0
    loaded = re.compile(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(?:https?:)?//')
    assert loaded.search('<link rel="stylesheet" href="https://example.org/a.css">')
    assert [page.name for page in (tmp_path / "site").rglob("*.html") if loaded.search(page.read_text())] == []
    for name in ("mkdocs.yml", "mkdocs_links.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    assert built(tmp_path, tmp_path / "again") == 0
    (tmp_path / "docs" / "guide.md").write_text("[a page](nowhere.md)")
    assert built(tmp_path, tmp_path / "again") != 0
