"""A browser's page over the DevTools protocol, with a WebSocket client just large enough for it."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
]


class WebSocket:
    """Text messages of a local, friendly server (RFC 6455; no extensions, no fragments from our side)."""

    def __init__(self, url: str) -> None:
        host, port, path = re.fullmatch(r"ws://([^:/]+):(\d+)(/.*)", url).groups()
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._buffer = b""
        while b"\r\n\r\n" not in self._buffer:
            self._buffer += self._socket.recv(4096)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text: str) -> None:
        payload, mask = text.encode(), os.urandom(4)
        n = len(payload)
        size = bytes([0x80 | n]) if n < 126 else struct.pack(">BH", 0x80 | 126, n) if n < 65536 else None
        size = size or struct.pack(">BQ", 0x80 | 127, n)
        repeated = (mask * (n // 4 + 1))[:n]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(n, "big") if n else b""
        self._socket.sendall(b"\x81" + size + mask + masked)

    def receive(self, timeout_s: float) -> str:
        """The next whole message; ``TimeoutError`` when none comes."""
        self._socket.settimeout(timeout_s)
        message = b""
        while True:
            first, second = self._take(2)
            n = second & 0x7F
            if n == 126:
                n = struct.unpack(">H", self._take(2))[0]
            elif n == 127:
                n = struct.unpack(">Q", self._take(8))[0]
            payload = self._take(n)
            assert first & 0x0F in (0, 1), f"unexpected frame {first:#x}"
            message += payload
            if first & 0x80:
                return message.decode()

    def _take(self, n: int) -> bytes:
        while len(self._buffer) < n:
            part = self._socket.recv(65536)
            assert part, "the browser closed the connection"
            self._buffer += part
        out, self._buffer = self._buffer[:n], self._buffer[n:]
        return out

    def close(self) -> None:
        self._socket.close()


class Page:
    """One tab."""

    def __init__(self, url: str) -> None:
        self._socket = WebSocket(url)
        self._ids = itertools.count(1)
        self.events: list[dict] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params):
        """Result of a DevTools method; events that come meanwhile are kept."""
        key = next(self._ids)
        self._socket.send(json.dumps({"id": key, "method": method, "params": params}))
        deadline = time.monotonic() + 20
        while True:
            message = json.loads(self._socket.receive(max(0.1, deadline - time.monotonic())))
            if message.get("id") == key:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self.events.append(message)

    def run(self, script: str):
        """The value of an expression in the page (a promise is waited for)."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 15) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + timeout_s
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, (condition, self.run("document.body.innerText"), self.troubles())
            time.sleep(0.03)

    def open(self, url: str) -> None:
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.body.dataset.ready")

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name: str) -> None:
        """light or dark"""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}
        more = {"text": "\r"} if key == "Enter" else {}
        shared = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", **shared, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def point_at(self, selector: str) -> None:
        """Moves the mouse onto an element."""
        x, y = self.run(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getClientRects()[0];"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def focused(self) -> str:
        return self.run("document.activeElement.id || document.activeElement.tagName")

    def troubles(self) -> list[str]:
        """Exceptions, errors in the console, violations of the content policy."""
        out = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                out.append(str(event["params"]["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                out.append(event["params"]["entry"]["text"])
        return out

    def requested(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        self._socket.close()


class Browser:
    """A headless browser with a profile of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        log = folder / "browser.log"
        # Its sockets lie here, whose paths must be short; it does not always remove them.
        self._temporary = tempfile.TemporaryDirectory(prefix="slm-browser-", ignore_cleanup_errors=True)
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "HOME": str(folder), "TMPDIR": self._temporary.name},
            )
        deadline = time.monotonic() + 30
        while not (found := re.search(r"DevTools listening on ws://([\d.:]+)/", log.read_text(errors="replace"))):
            assert self._process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.05)
        self._address = found.group(1)

    def page(self) -> Page:
        target = httpx.put(f"http://{self._address}/json/new?about:blank", timeout=20).json()
        return Page(target["webSocketDebuggerUrl"])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._temporary.cleanup()
