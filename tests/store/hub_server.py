"""A hub of models on this machine: the few answers of the real one that a download asks for, and wrong ones."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """files: of the only repository. token: what it asks for. cut: bytes of a file's body that are sent before the
    connection breaks, once. lie: what a file's sha256 is said to be. moved: an older name that leads here."""

    repository = "tiny/model"
    moved = "old/model"

    def __init__(self, files: Mapping[str, bytes]):
        self.files = dict(files)
        self.token: str | None = None
        self.cut: dict[str, int] = {}
        self.lie: dict[str, str] = {}
        self.asked: list[tuple[str, str, str | None]] = []  # method, path, range

    def digest(self, name: str) -> str:
        return self.lie.get(name) or hashlib.sha256(self.files[name]).hexdigest()

    def listing(self) -> dict[str, Any]:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "lfs": {"sha256": self.digest(name), "size": len(data), "pointerSize": 130},
            }
            for name, data in self.files.items()
        ]
        return {"id": self.repository, "modelId": self.repository, "sha": COMMIT, "siblings": siblings, "tags": []}


@contextmanager
def serving(hub: Hub) -> Iterator[str]:
    """Serves on loopback; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range")))
        if self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.send(401, b'{"error": "no"}', {"X-Error-Message": "Invalid credentials"}, body)
        for prefix in ("/api/models/", "/"):
            if path.startswith(prefix + self.hub.moved):
                there = path.replace(self.hub.moved, self.hub.repository, 1)
                query = urlsplit(self.path).query
                return self.send(307, b"", {"Location": there + (f"?{query}" if query else "")}, body)
        if path.startswith(f"/api/models/{self.hub.repository}"):
            listing = json.dumps(self.hub.listing()).encode()
            return self.send(200, listing, {"Content-Type": "application/json"}, body)
        start = f"/{self.hub.repository}/resolve/"
        name = path.removeprefix(start).partition("/")[2] if path.startswith(start) else ""
        if name in self.hub.files:
            return self.file(name, body)
        return self.send(404, b'{"error": "not here"}', {"X-Error-Code": "RepoNotFound"}, body)

    def file(self, name: str, body: bool) -> None:
        data = self.hub.files[name]
        headers = {
            "ETag": f'"{self.hub.digest(name)}"',
            "X-Linked-Etag": f'"{self.hub.digest(name)}"',
            "X-Linked-Size": str(len(data)),
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        asked = self.headers.get("Range")
        first = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if asked:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.send(206 if asked else 200, data[first:], headers, body, self.hub.cut.pop(name, None) if body else None)

    def send(self, status: int, data: bytes, headers: Mapping[str, str], body: bool, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[:cut])
            self.wfile.flush()
        if cut is not None:
            self.close_connection = True
