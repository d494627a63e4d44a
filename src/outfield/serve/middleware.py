"""The gate of the service: tokens, headers that every answer carries, one log line and one count a request."""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outfield.serve.limits import Refused
from outfield.serve.telemetry import Counts, log, tell

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer: nothing is loaded from elsewhere, and no script is run but ours."""
OPEN = ("/", "/page.css", "/page.js", "/rows.js", "/icon.svg", "/v2/health/live", "/v2/health/ready")
"""What is shown without a token: the page itself, and whether the service runs."""
KNOWN_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Gate:
    """Everything passes here on its way in and out.

    ``words`` are parts of our own addresses. Others come from clients, may be secrets that were put in the wrong place, and are
    not logged.
    """

    def __init__(self, app: ASGIApp, token: str | None, counts: Counts, words: Collection[str] = ()) -> None:
        self.app, self.counts, self._words = app, counts, words
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        scope["state"] = {**scope.get("state", {}), "began": began}

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *KNOWN_HEADERS]
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, receive, sent)
        except Refused as refused:
            await refusal(refused)(scope, receive, sent)
        except ClientDisconnect:
            status = status or 499
        except Exception:
            log.exception("failed")
            if status == 0:
                await refusal(Refused(500, "the service failed; its log says why"))(scope, receive, sent)
        self._finish(scope, status, time.monotonic() - began)

    def _check(self, scope: Scope) -> None:
        """Refuse requests without the token, and pages of other sites in the browser of a client who has it."""
        headers = Headers(scope=scope)
        _check_length(scope, headers)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            raise Refused(403, "this service answers no pages of other places", {"Connection": "close"})
        if self._token is None:
            _check_host(scope, headers.get("host"))
            return
        if scope["path"] in OPEN:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        good = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)
        if kind.lower() != "bearer" or not good:
            challenge = {"WWW-Authenticate": "Bearer", "Connection": "close"}
            raise Refused(401, "send the token: Authorization: Bearer …", challenge)

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.counts.requests.labels(route, str(status)).inc()
        state: MutableMapping[str, Any] = scope["state"]
        guard = state.get("guard")
        if guard is not None and status == 200:
            self.counts.seconds.labels(guard).observe(seconds)
        level = logging.INFO if status < 500 else logging.WARNING
        if log.isEnabledFor(level):
            about = {name: state[name] for name in ("guard", "images", "ood") if name in state}
            path = "/".join(part if part in self._words else "…" for part in scope["path"].split("/"))
            told = {"method": scope["method"], "path": path, "status": status, "ms": round(1000 * seconds, 2)}
            tell(level, "request", **told, **about)


def _check_length(scope: Scope, headers: Headers) -> None:
    """Refuse a request that says in two ways where it ends: a proxy in front may believe the other one (RFC 9112, 6.1).

    h11 refuses lengths that differ and codings other than chunked, but takes chunked with a length, and from HTTP/1.0.
    """
    if "transfer-encoding" not in headers:
        return
    if "content-length" in headers:
        message = "the request has a Content-Length and a Transfer-Encoding; send one of them"
        raise Refused(400, message, {"Connection": "close"})
    if scope.get("http_version") == "1.0":
        raise Refused(400, "HTTP/1.0 has no Transfer-Encoding; send a Content-Length", {"Connection": "close"})


def _check_host(scope: Scope, host: str | None) -> None:
    """Refuse a foreign host name that leads to this machine's own address (DNS rebinding): its pages would pass for ours.

    Only where no token protects a service that this machine alone can reach.
    """
    here = scope.get("server")
    if here is None or not _is_loopback(str(here[0])):
        return
    name = urlsplit(f"//{host}").hostname if host is not None else None
    if name is not None and name != "localhost" and not _is_loopback(name):
        message = "without a token this service answers only to localhost and 127.0.0.1; ask for it so, or start it with a token"
        raise Refused(403, message, {"Connection": "close"})


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def refusal(refused: Refused) -> Response:
    """A refusal as an answer: ``{"error": …}``."""
    return Response(json.dumps({"error": refused.message}), refused.status, refused.headers, "application/json")
