"""The page of a run on this machine's loopback interface, made anew when the run has written something."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from trainer.page import assemble, folder

HOSTS = {"127.0.0.1", "localhost"}


class PageServer(ThreadingHTTPServer):
    """Answers `/` and `/fingerprint`, and only to those who ask for this machine by its own name."""

    daemon_threads = True

    def __init__(self, run: Path, port: int, count: int) -> None:
        """Raises `OSError` for a port that is taken."""
        super().__init__(("127.0.0.1", port), Handler)
        self.run = run
        self.count = count
        self._lock = threading.Lock()
        self._made = ("", b"")  # fingerprint, page

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def page(self) -> bytes:
        with self._lock:
            mark = folder.fingerprint(self.run)
            if self._made[0] != mark or not self._made[1]:
                self._made = (mark, assemble.page(self.run, count=self.count, served=True).encode())
            return self._made[1]


class Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        if self.headers.get("Host", "").rpartition(":")[0] not in HOSTS:
            # Another site's name that points here: its scripts must not read the run.
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"ask for 127.0.0.1 or localhost")
        elif self.path == "/fingerprint":
            self._answer(HTTPStatus.OK, "text/plain", folder.fingerprint(self.server.run).encode())
        elif self.path == "/":
            self._page()
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is only /")

    def _page(self) -> None:
        try:
            page = self.server.page()
        except ValueError as error:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", str(error).encode())
        else:
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""
