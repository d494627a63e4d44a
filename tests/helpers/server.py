"""A web server on this machine, for tests of downloads."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """What it offers by path; ``asked`` are the paths that were asked for.

    ``declared`` overrides the length that is said, ``moved`` the place of a path.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.declared: dict[str, int] = {}
        self.moved: dict[str, str] = {}
        self.asked: list[str] = []
        self.address = ""


@contextmanager
def serving():
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            server.asked.append(self.path)
            if self.path in server.moved:
                self.send_response(302)
                self.send_header("Location", server.moved[self.path])
                self.end_headers()
            elif self.path not in server.files:
                self.send_error(404)
            else:
                content = server.files[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(server.declared.get(self.path, len(content))))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        running.shutdown()
        running.server_close()
        thread.join()
