"""Headless Chromium, driven over a web socket (chromedevtools.github.io/devtools-protocol)."""

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

LOADED = 60.0  # seconds that a page may take
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions")
QUIET = ("--disable-background-networking", "--disable-sync", "--disable-component-update", "--mute-audio")
KEYS = {"Enter": ("\r", 13), " ": (" ", 32), "Tab": ("", 9)}  # text and code


class Page:
    """One tab; `messages` are what the console and uncaught errors said, `requests` the addresses it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._asked = 0
        self.messages: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> Any:
        """A command's result; events that come meanwhile are noted."""
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": params})
        while True:
            told = await self._next()
            if told.get("id") == self._asked:
                assert "error" not in told, told
                return told["result"]

    async def _next(self) -> dict[str, Any]:
        told: dict[str, Any] = await self._socket.receive_json(timeout=LOADED)
        params = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.messages.append(json.dumps(params["args"]))
            case "Log.entryAdded":
                self.messages.append(json.dumps(params["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
        return told

    async def show(self, url: str, width: int, height: int = 900, scheme: str = "light") -> None:
        """Load a page into a window of this size, and wait until all of it is there."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)
        await self.call("Page.navigate", url=url)
        while (await self._next()).get("method") != "Page.loadEventFired":
            pass
        await self.js("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    async def js(self, code: str) -> Any:
        """The value of an expression in the page; a promise's, once it has one."""
        told = await self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def press(self, key: str) -> None:
        text, code = KEYS[key]
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def picture(self, path: Path, whole: bool = True) -> None:
        told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    async def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode((await self.call("Page.printToPDF", printBackground=False))["data"])


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Page]:
    """A page of a Chromium with a profile of its own in `folder`, until the end of the block."""
    binary = shutil.which("chromium")
    assert binary, "install Debian's chromium, or see .ci/run"
    (folder / "DevToolsActivePort").unlink(missing_ok=True)  # of the browser before
    argv = [binary, *ARGUMENTS, *QUIET, f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            port = await _port(folder / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as reply:
                    tabs = await reply.json()
                url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


async def _port(path: Path) -> int:
    async with asyncio.timeout(LOADED):
        while not (path.exists() and path.read_text().count("\n") >= 1):
            await asyncio.sleep(0.05)
    return int(path.read_text().splitlines()[0])


def browsed(folder: Path, look: Callable[[Page], Any]) -> Any:
    """What `look`, a coroutine function, finds in a Chromium."""

    async def looked() -> Any:
        async with chromium(folder) as page:
            return await look(page)

    return asyncio.run(looked())
