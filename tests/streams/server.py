"""A small web server on loopback that misbehaves on demand."""

import hashlib
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """What the server serves and how: files by path, and a list of mishaps, one per request."""

    def __init__(self):
        self.files = {}
        self.mishaps = []  # ("drop", n): close after n bytes; ("status", 503); ("corrupt",)
        self.ranges = True
        self.marks = True
        self.requests = []  # (path, Range header, status)
        self.address = ""

    def url(self, name):
        return f"{self.address}/{name}"


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_):
        pass

    def do_GET(self):
        site = self.site
        asked = self.headers.get("Range")
        mishap = site.mishaps.pop(0) if site.mishaps else ("none",)
        body = site.files.get(self.path.lstrip("/"))
        if body is None or mishap[0] == "status":
            code = 404 if body is None else mishap[1]
            site.requests.append((self.path, asked, code))
            self.send_error(code)
            return
        tag = '"' + hashlib.md5(body).hexdigest() + '"'
        start, status = 0, 200
        if asked and site.ranges and self.headers.get("If-Range") in (None, tag):
            start, status = int(asked.removeprefix("bytes=").rstrip("-")), 206
        site.requests.append((self.path, asked, status))
        if status == 206 and start >= len(body):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(body)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(status)
        if site.marks:
            self.send_header("ETag", tag)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        rest = body[start:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if mishap[0] == "corrupt":
            rest = bytes([rest[0] ^ 1]) + rest[1:]
        if mishap[0] == "drop":
            rest = rest[: mishap[1]]
        self.wfile.write(rest)
        self.close_connection = True


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A client that hangs up is part of the tests."""


@contextmanager
def website():
    site = Site()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"site": site}))
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
