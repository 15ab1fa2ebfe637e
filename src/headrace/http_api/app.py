"""The HTTP side port: is it alive, is it ready, how is it doing.

    GET /          what there is
    GET /healthz   200 while the process lives and its main loop takes its turn, else 503: restart it
    GET /readyz    200 while both stores really answer and the broker stands in the cluster, else 503: send no clients
    GET /metrics   Prometheus text

Must stay true: nothing here runs on the main loop except the checks, which it bounds; nothing depends on a body, a
query or a header that a client sent.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.http_api.readiness import Finding, MainLoop, Readiness

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NEVER_STORED = {"cache-control": "no-store"}

INDEX = """\
Headrace

/healthz   is the process alive
/readyz    can it serve: metadata store, object store, place in the cluster
/metrics   figures for Prometheus

Kafka clients connect to the other port.
"""


def build_app(*, main_loop: MainLoop, readiness: Readiness, render_metrics: Callable[[], bytes]) -> Starlette:
    """Return the routes. `render_metrics` is called on the HTTP thread."""

    async def index(_request: Request) -> Response:
        return PlainTextResponse(INDEX)

    async def healthz(_request: Request) -> Response:
        if await main_loop.ping():
            return JSONResponse({"status": "alive"}, headers=NEVER_STORED)
        stuck = {
            "status": "stuck",
            "reason": "the main loop does not take its turn",
            "remedy": "look at the log and the CPU use of this process; restart it if this lasts",
        }
        return JSONResponse(stuck, status_code=503, headers=NEVER_STORED)

    async def readyz(_request: Request) -> Response:
        findings = await readiness.findings()
        is_ready = all(finding.reason is None for finding in findings)
        body = {
            "status": "ready" if is_ready else "not ready",
            "checks": {finding.name: _shown(finding) for finding in findings},
        }
        return JSONResponse(body, status_code=200 if is_ready else 503, headers=NEVER_STORED)

    async def metrics(_request: Request) -> Response:
        return Response(render_metrics(), headers={"content-type": METRICS_TYPE, **NEVER_STORED})

    app = Starlette(
        routes=[
            Route("/", index, methods=["GET"]),
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ]
    )
    app.router.redirect_slashes = False
    return app


def _shown(finding: Finding) -> dict[str, str]:
    if finding.reason is None:
        return {"status": "ok"}
    return {"status": "failed", "reason": finding.reason, "remedy": finding.remedy}
