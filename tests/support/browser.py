"""Debian's Chromium, headless: what a page's own functions return there."""

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

OUT = "result-of-test"
MARK = f'<pre id="{OUT}">'


def evaluated(page: str, script: str, folder: Path) -> Any:
    """Return the JSON of a script's value at the end of a page; the test is skipped where no Chromium is installed."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed here (apt-get install chromium): the page was not tried in a browser")
    asked = (
        f"<script>document.body.append(Object.assign(document.createElement('pre'), "
        f"{{id: '{OUT}', textContent: JSON.stringify({script})}}))</script></body>"
    )
    path = folder / "page.html"
    path.write_text(page.replace("</body>", asked), encoding="utf-8")
    call = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    seen = subprocess.run([chromium, *call, path.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert MARK in seen.stdout, seen.stderr[-2000:]
    return json.loads(unescape(seen.stdout.split(MARK)[1].split("</pre>")[0]))
