"""What the pages say."""

import asyncio

import pytest

from headrace.errors import Retryable
from headrace.http_api import readiness
from headrace.http_api.readiness import ReadyCheck
from headrace.runtime.metrics import Label
from tests.unit.http_api.serving import serving

PATHS = ("/", "/healthz", "/readyz", "/metrics")


async def fine() -> None:
    return None


async def broken() -> None:
    raise Retryable("no route to the bucket")


async def test_the_index_names_every_page() -> None:
    async with serving() as server:
        answer = await server.ask("/")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    assert all(path in answer.body.decode() for path in PATHS)


async def test_a_broker_is_ready_when_all_checks_pass() -> None:
    checks = [ReadyCheck(name=name, check=fine, remedy="") for name in ("metadata", "objects")]
    async with serving(checks) as server:
        answer = await server.ask("/readyz")
    assert answer.status == 200
    assert answer.json() == {"status": "ready", "checks": {"metadata": {"status": "ok"}, "objects": {"status": "ok"}}}
    assert answer.headers["cache-control"] == "no-store"


async def test_a_failed_check_is_named_with_what_to_do() -> None:
    checks = [
        ReadyCheck(name="metadata", check=fine, remedy=""),
        ReadyCheck(name="objects", check=broken, remedy="look at --objects"),
    ]
    async with serving(checks) as server:
        answer = await server.ask("/readyz")
        alive = await server.ask("/healthz")
    assert answer.status == 503
    assert answer.json() == {
        "status": "not ready",
        "checks": {
            "metadata": {"status": "ok"},
            "objects": {"status": "failed", "reason": "no route to the bucket", "remedy": "look at --objects"},
        },
    }
    assert alive.status == 200 and alive.json() == {"status": "alive"}, (
        "a broker that is not ready lives all the same"
    )


async def test_a_stuck_main_loop_is_told_while_it_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving([ReadyCheck(name="a", check=fine, remedy="")], check_limit_s=0.2) as server:
        monkeypatch.setattr(readiness.MainLoop.ping, "__kwdefaults__", {"limit_s": 0.2})
        # Blocking calls on the test's own loop: the main loop takes no turn, and the pages answer nevertheless.
        health, ready, metrics = (server.ask_nowait(path) for path in ("/healthz", "/readyz", "/metrics"))
        assert health.status == 503 and health.json()["status"] == "stuck" and "remedy" in health.json()
        assert ready.status == 503 and ready.json()["checks"]["a"]["reason"] == "no answer within 0.2 s"
        assert metrics.status == 200
        monkeypatch.undo()
        assert (await server.ask("/healthz")).status == 200


async def test_metrics_are_prometheus_text() -> None:
    async with serving() as server:
        server.metrics.counters("things", "Things.").of().inc(3)
        answer = await server.ask("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"headrace_things_total 3.0" in answer.body.splitlines()


async def test_metrics_are_rendered_while_others_count() -> None:
    async with serving() as server:
        counters = server.metrics.counters("things", "Things.", Label("kind"))
        seconds = server.metrics.histograms("wait_seconds", "Waits.")
        scrapes = [asyncio.ensure_future(server.ask("/metrics")) for _ in range(20)]
        counted = 0
        while not all(scrape.done() for scrape in scrapes):
            counters.of(str(counted % 150)).inc()
            seconds.of().observe(0.01)
            counted += 1
            await asyncio.sleep(0)
        answers = [scrape.result() for scrape in scrapes]
        last = await server.ask("/metrics")
    assert all(answer.status == 200 for answer in answers)
    things = [line for line in last.body.splitlines() if line.startswith(b"headrace_things_total{")]
    assert sum(float(line.rpartition(b" ")[2]) for line in things) == counted
    assert f"headrace_wait_seconds_count {float(counted)}".encode() in last.body.splitlines()


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//", "/../etc/passwd", "/healthz/x", "/%00", "/METRICS"])
async def test_unknown_paths_are_not_found(path: str) -> None:
    async with serving() as server:
        answer = await server.ask(path)
    assert answer.status == 404


async def test_other_methods_are_refused_and_head_works() -> None:
    async with serving() as server:
        for path in PATHS:
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"):
                answer = await server.ask(path, method, b"body")
                assert answer.status == 405 and "GET" in answer.headers["allow"], (method, path)
            head = await server.ask(path, "HEAD")
            assert head.status == 200 and head.body == b"" and int(head.headers["content-length"]) >= 0
