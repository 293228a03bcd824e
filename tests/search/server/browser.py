"""Chromium without a window, driven by the DevTools protocol over a pair of pipes."""

import base64
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)


class Page:
    """A page: runs JavaScript in it, presses keys and moves the mouse."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = os.fdopen(commands, "wb", 0), os.fdopen(answers, "rb")
        self._number, self._session, self.problems = 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Returns the result of a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = json.loads(self._line())
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(answer["params"]))
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _line(self):
        line = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            line += byte
        return bytes(line)

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens an address in a window of this size."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            mobile=phone,
            deviceScaleFactor=1,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState == 'complete' && location.href != 'about:blank'")

    def run(self, script: str) -> Any:
        """Returns the value of an expression, or of the promise that it is."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        until = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < until, f"{condition}\n{self.run('document.body.innerText')}"
            time.sleep(0.03)

    def give(self, selector: str, path: pathlib.Path) -> None:
        """Chooses a file in a file field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def drag(self, *points: tuple[float, float]) -> None:
        """Presses the mouse at the first point, moves it over the others and releases it at the last."""
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1), "mouseReleased"]
        for kind, (x, y) in zip(kinds, [*points, points[-1]]):
            event = {"type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", **event)

    def press(self, key: str, shift: bool = False) -> None:
        """Presses a key such as Tab, Enter or ArrowLeft."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, 0)
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=8 * shift,
                **(text if kind == "keyDown" else {}),
            )

    def screenshot(self, path: pathlib.Path) -> None:
        """Writes what the window shows as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def browser(profile: pathlib.Path) -> Iterator[Page]:
    """Starts Chromium with a new profile in this folder; it ends with the context."""
    from_test, to_browser = os.pipe()
    from_browser, to_test = os.pipe()
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--remote-debugging-pipe",
        "--hide-scrollbars",
    ]
    # Chromium reads commands from descriptor 3 and writes to 4.
    script = f'exec "$@" 3<&{from_test} 4>&{to_test}'
    command = [
        "bash",
        "-c",
        script,
        "bash",
        CHROMIUM,
        *flags,
        f"--user-data-dir={profile}",
        "--hide-scrollbars",
    ]
    process = subprocess.Popen(
        command, pass_fds=(from_test, to_test), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(from_test)
    os.close(to_test)
    try:
        yield Page(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait(timeout=20)
