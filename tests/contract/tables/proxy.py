"""A proxy in front of a REST catalog, which can lose the answer to a commit that was made."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LONGEST_ANSWER_S = 30


@dataclass(slots=True)
class Behaviour:
    """What the next commits meet: a status instead of the real answer, or `None` for a connection that just ends."""

    answers: list[int | None] = field(default_factory=list)
    commits: int = 0


@contextmanager
def lossy_proxy(target_port: int) -> Iterator[tuple[str, Behaviour]]:
    """Run the proxy on loopback, and give its address and what it is to do."""
    behaviour = Behaviour()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            return None

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            upstream = http.client.HTTPConnection("127.0.0.1", target_port, timeout=LONGEST_ANSWER_S)
            try:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                status, content = answer.status, answer.read()
            finally:
                upstream.close()
            if self.command == "POST" and '"requirements"' in body.decode(errors="replace"):
                behaviour.commits += 1
                if behaviour.answers:
                    lost = behaviour.answers.pop(0)
                    if lost is None:
                        self.close_connection = True
                        return
                    status, content = lost, b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = True

        def __getattr__(self, name: str) -> object:
            # The base class looks for one method per verb: `do_GET`, `do_POST`…
            if name.startswith("do_"):
                return self._pass_on
            raise AttributeError(name)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", behaviour
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
