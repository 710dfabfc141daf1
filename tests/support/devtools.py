"""A real browser without a window, driven by the Chrome DevTools Protocol; Chromium must be installed."""

import asyncio
import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.support.needs import program
from tests.support.patience import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome")
AXE = Path(__file__).parents[1] / "publication" / "axe-core" / "axe.min.js"
MODES: dict[str, list[dict[str, str]]] = {
    "light": [{"name": "prefers-color-scheme", "value": "light"}],
    "dark": [{"name": "prefers-color-scheme", "value": "dark"}],
    "forced": [{"name": "forced-colors", "value": "active"}],
}
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40}


class Page:
    """One tab of the browser."""

    def __init__(self, runner: asyncio.Runner, socket: WebSocketClientConnection) -> None:
        self._runner, self._socket = runner, socket
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; return its result."""
        return self._runner.run(asyncio.wait_for(self._call(method, parameters), PATIENCE))

    async def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while (answer := await self._read()).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    async def _read(self) -> dict[str, Any]:
        text = await self._socket.read_message()
        assert text is not None, "the browser ended"
        message: dict[str, Any] = json.loads(text)
        return message

    def attach(self) -> None:
        """Make the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for room in ("Page", "Network", "Runtime"):
            self.call(f"{room}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def look(self, width: int = 1280, mode: str = "light", *, media: str = "screen") -> None:
        """Set how the next pages are looked at."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=media, features=MODES[mode])

    def open(self, path: Path, fragment: str = "") -> None:
        """Open a file, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri() + fragment)
        self.wait("document.readyState === 'complete' && location.href.startsWith('file:')")

    def run(self, script: str) -> Any:
        """Return what a script comes to, as JSON; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script[:200]}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a script comes to true."""
        look = f"if ({condition}) done(); else if (Date.now() > end) fail('too long'); else setTimeout(look, 20);"
        self.run(
            f"new Promise((done, fail) => {{ const end = Date.now() + {900 * PATIENCE}; "
            f"const look = () => {{ {look} }}; look(); }})"
        )

    def press(self, key: str) -> None:
        """Press and let go a key, or a letter."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = KEYS.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            said = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **said)

    def violations(self) -> list[str]:
        """Return what axe-core finds wrong with the page."""
        self.run(AXE.read_text())
        found = self.run("axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)")
        return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]

    def addresses(self) -> set[str]:
        """Return what was asked for since the page was opened."""
        self.run("1")
        asked = [each["params"] for each in self.events if each.get("method") == "Network.requestWillBeSent"]
        return {str(each["request"]["url"]) for each in asked}

    def screenshot(self, target: Path) -> None:
        """Write a picture of the whole page, to be looked at."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        target.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Yield a tab for a block, of a browser whose profile is in `folder`."""
    command = [program(*NAMES), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run", "about:blank"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = next(line.split()[-1] for line in process.stderr if line.startswith("DevTools listening"))
            with asyncio.Runner() as runner:

                async def connected() -> WebSocketClientConnection:
                    return await websocket_connect(address, max_message_size=1 << 28)

                socket = runner.run(connected())
                page = Page(runner, socket)
                page.attach()
                yield page

                async def closed() -> None:
                    socket.close()
                    await asyncio.sleep(0.05)

                runner.run(closed())
        finally:
            process.kill()


def evaluated(page: str, script: str, folder: Path) -> Any:
    """Return what a script comes to on a page, as JSON."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    with browser(folder / "profile") as tab:
        tab.open(path)
        return tab.run(script)
