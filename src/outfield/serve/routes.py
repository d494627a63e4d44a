"""The service over HTTP: its addresses, as a FastAPI application, and the gate through which every request passes."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Sequence
from importlib import resources
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outfield.config import require_choice
from outfield.errors import InputError
from outfield.features import FIELDS
from outfield.guard import ExplainedVerdict, ImageVerdict, ReviewFolder, Verdict, classes_of
from outfield.serve import inference_protocol as protocol
from outfield.serve.body import answering, drain, event_of, uploads_of
from outfield.serve.limits import Refused
from outfield.serve.models import Model
from outfield.serve.queue import SHOWN, ReviewQueue
from outfield.serve.queue import plain as _plain
from outfield.serve.service import Service
from outfield.serve.telemetry import log, tell
from outfield.version import __version__

BINS = 40  # of the histogram of calibration scores
SCORES = 1001  # calibration scores that are told, at most: evenly spaced, with the least and the largest
UNKNOWN_CLIENT = 2**20  # bytes of a refused client's body that are read and thrown away, so that it sees the answer

_FILE = {"type": "string", "format": "binary"}
_FILES = {"type": "object", "properties": {"file": {"type": "array", "items": _FILE}}}
_ROW = [{"type": "object"}, {"type": "string"}, {"type": "array", "items": {"type": "number"}}]
_ROWS = {"type": "array", "items": {"anyOf": _ROW}}
_TENSORS = {"application/json": {"type": "object"}, "application/octet-stream": _FILE}
_UPLOADS = {"multipart/form-data": _FILES, "image/*": _FILE, "text/csv": {"type": "string"}, "application/json": _ROWS}
_EVENTS = {"application/json": {"type": "object"}, "application/cloudevents+json": {"type": "object"}}
_ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_ERRORS = {"description": "What was wrong.", "content": {"application/json": {"schema": _ERROR}}}
PAGE = {"/": "text/html", "/page.css": "text/css", "/icon.svg": "image/svg+xml"}
PAGE |= dict.fromkeys(("/page.js", "/review.js", "/rows.js", "/boxes.js"), "text/javascript")


def make_app(service: Service) -> FastAPI:
    """The application."""
    about: dict[str, Any] = {"title": "Outfield", "version": __version__, "responses": {"default": _ERRORS}}
    app = FastAPI(**about, docs_url=None, redoc_url=None)
    app.add_middleware(Gate, service=service)
    for kind in (HTTPException, InputError):
        app.add_exception_handler(kind, _refuse)
    _add_protocol(app, service)
    _add_verdicts(app, service)
    _add_reviews(app, service)
    for path, media_type in PAGE.items():
        _add_page(app, path, media_type)
    if service.settings.token is not None:
        _tell_token(app)
    return app


def _tell_token(app: FastAPI) -> None:
    """Say in OpenAPI that a token is asked for, and where it is not."""
    told = app.openapi()
    told.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in told["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if path in OPEN else [{"token": []}]


async def _refuse(_: Request, error: Exception) -> Response:
    return refusal(error)


def refusal(error: Exception) -> Response:
    """Errors of the routes and of ours, in one shape: ``{"error": …}``."""
    refused = error if isinstance(error, HTTPException) else Refused(400, str(error))
    return Response(json.dumps({"error": refused.detail}), refused.status_code, refused.headers, "application/json")


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")


def _body(kinds: dict[str, Any]) -> dict[str, Any]:
    """What a body may be, for OpenAPI."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": one} for kind, one in kinds.items()}}}


def _add_protocol(app: FastAPI, service: Service) -> None:
    """The Open Inference Protocol."""

    def ready_answer(**more: str) -> Response:
        return _json({**more, "ready": service.ready}, 200 if service.ready else 503)

    def model_of(name: str, version: str) -> Model:
        if version != "1":
            raise Refused(404, f"there is no version {version[:20]!r}; there is 1")
        return service.model(name)

    @app.get("/v2", tags=["Open Inference Protocol"])
    async def server() -> Response:
        """Name, version and extensions of the server."""
        return _json({"name": "outfield", "version": __version__, "extensions": ["binary_tensor_data"]})

    @app.get("/v2/health/live", tags=["Open Inference Protocol"])
    async def live() -> Response:
        """Whether the server runs."""
        return _json({"live": True})

    @app.get("/v2/health/ready", tags=["Open Inference Protocol"])
    async def ready() -> Response:
        """Whether the server takes requests, and goes on to do so."""
        return ready_answer()

    @app.get("/v2/models/{name}/versions/{version}", include_in_schema=False)
    @app.get("/v2/models/{name}", tags=["Open Inference Protocol"])
    async def metadata(name: str, version: str = "1") -> Response:
        """Inputs and outputs of a guard."""
        return _json(_metadata(model_of(name, version)))

    @app.get("/v2/models/{name}/versions/{version}/ready", include_in_schema=False)
    @app.get("/v2/models/{name}/ready", tags=["Open Inference Protocol"])
    async def model_ready(name: str, version: str = "1") -> Response:
        """Whether a guard takes requests."""
        return ready_answer(name=model_of(name, version).name)

    @app.post("/v2/models/{name}/versions/{version}/infer", include_in_schema=False)
    @app.post("/v2/models/{name}/infer", tags=["Open Inference Protocol"], openapi_extra=_body(_TENSORS))
    async def infer(request: Request, name: str, version: str = "1") -> Response:
        """Scores, p-values, verdicts and labels of encoded images (BYTES), pixels (UINT8), features (FP32) or columns."""
        model = model_of(name, version)
        if model.guard.reader.scored == "boxes":
            what = f"{model.name} judges the boxes of an image, which this protocol has no place for"
            raise InputError(f"{what}: POST /v1/check")
        async with service.bodies.read(request) as body:
            given = body, request.headers.get(protocol.HEADER_LENGTH), model.guard
            asked = await service.work.aside(protocol.parse, len(body), *given)
            verdicts = await service.work.judge(model, asked.given)
        _count(service, request, model.name, verdicts)
        for row, one in enumerate(verdicts, 1):  # a tensor has no place for the error of one row
            if one.error is not None:
                rest = f"row {row}: {one.error}; POST /v1/check judges the others"
                raise InputError(one.error if isinstance(asked.given, list) else rest)
        content, json_length = protocol.answer(asked, model.name, verdicts)
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {protocol.HEADER_LENGTH: str(json_length)}
        return Response(content, headers=headers, media_type="application/octet-stream")


def _count(service: Service, request: Request, guard: str, found: Sequence[Verdict]) -> None:
    """Count what could not be read, and note for the log what was asked."""
    errors, ood = sum(one.error is not None for one in found), sum(bool(one.is_ood) for one in found)
    service.counts.samples.labels(guard, "error").inc(errors)
    request.scope["state"]["about"] = {"guard": guard, "images": len(found), "ood": ood, "errors": errors}


def _add_verdicts(app: FastAPI, service: Service) -> None:
    verdicts: dict[int | str, dict[str, Any]] = {200: {"model": list[ExplainedVerdict | ImageVerdict]}}

    @app.post("/v1/check", tags=["Verdicts"], openapi_extra=_body(_UPLOADS), responses=verdicts)
    async def check(request: Request, guard: str | None = None, why: bool = False) -> Response:
        """Verdicts on images of a form or body, or on rows or texts in CSV or JSON, as ``outfield guard check --json`` has them.

        What cannot be read has an error instead. With ``why`` the columns that make a row of a table OOD are named.
        """
        model, work = service.model(guard), service.work
        takes = model.guard.takes
        if why and takes != "table":
            raise InputError(f"why names columns of a table, but {model.name} looks at {takes}; leave it out")
        async with service.bodies.read(request) as body:
            kind = request.headers.get("content-type", "")
            uploads = await uploads_of(body, kind, service.settings.limits)
            if takes == "images" or kind.startswith("image/"):
                found = await work.images(model, [(one.name, one.content) for one in uploads])
            else:
                found = [verdict for one in uploads for verdict in await work.upload(model, one, why)]
        _count(service, request, model.name, found)
        return _json([_plain(one) for one in found])

    @app.post("/v1/events", tags=["Verdicts"], openapi_extra=_body(_EVENTS), responses=verdicts)
    async def events(request: Request, guard: str | None = None) -> Response:
        """A CloudEvent, as KServe's payload logger posts it: an inference request (V2 or V1) is judged.

        Another event that holds the verdicts of ``/v1/check`` answers it. Events of other types are not looked at (202).
        """
        work = service.work
        async with service.bodies.read(request) as body:
            event = await work.aside(event_of, len(body), request.headers, body)
            if not event.about["type"].endswith(".inference.request"):
                return Response(status_code=202)
            if guard is None and len(service.models) > 1:
                guard = event.about.get("inferenceservicename")
            model = service.model(guard)
            asked = event.data, event.header(protocol.HEADER_LENGTH), model.guard
            found = await work.judge(model, await work.aside(protocol.logged, len(event.data), *asked))
        _count(service, request, model.name, found)
        headers = answering(event, f"/v1/events?guard={quote(model.name)}")
        return Response(json.dumps([_plain(one) for one in found]), headers=headers, media_type="application/json")

    @app.get("/v1/guards", tags=["Verdicts"])
    async def guards() -> Response:
        """What each guard is: classes, members, threshold, calibration scores."""
        return _json([_about(model) for model in service.models.values()])

    @app.get("/v1/traffic", tags=["Verdicts"])
    async def traffic(guard: str | None = None) -> Response:
        """What a guard has seen: share OOD, p-values, and whether there is drift."""
        return _json(service.model(guard).drift.summary())

    @app.post("/v1/reload", tags=["Verdicts"])
    async def reload() -> Response:
        """Read every guard's file again; a file that holds no guard changes nothing."""
        found = await asyncio.to_thread(service.reload)
        return _json({"reloaded": found}, 200 if all(found.values()) else 409)

    @app.get("/metrics", tags=["Verdicts"])
    async def metrics() -> Response:
        """Prometheus."""
        return Response(service.counts.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


MOST_FEEDBACK = 4096  # bytes of what a person says of an item


class Feedback(BaseModel, extra="forbid", strict=True):
    """What a person says of an item."""

    id: str
    known: bool
    name: str | None = Field(None, alias="class")


def _add_reviews(app: FastAPI, service: Service) -> None:
    """What was kept, and what people say of it."""

    def queue_of(name: str | None) -> ReviewQueue:
        if (found := service.model(name).queue) is None:
            raise Refused(404, "nothing is kept for review; outfield serve --keep FOLDER does it")
        return found

    def found(item: str) -> tuple[Model, ReviewFolder]:
        """The guard whose item it is, and the folder that it is in."""
        for name, model in service.models.items():
            if item in (folder := queue_of(name).folder):
                return model, folder
        raise Refused(404, f"there is no item {item[:100]!r}; it may have been removed to make room")

    @app.get("/v1/queue", tags=["Review"])
    async def queue(guard: str | None = None, after: str = "", show: str = SHOWN[0]) -> Response:
        """Kept inputs, the oldest first, some at a time: ``show`` is open, sample (those of it that are open) or all."""
        require_choice("show", show, SHOWN)
        return _json(await asyncio.to_thread(queue_of(guard).page, after, show))

    @app.get("/v1/queue/{item}", tags=["Review"])
    async def kept(item: str) -> Response:
        """An item: verdict, time, the row of a guard of rows, and what a person said."""
        return _json(await asyncio.to_thread(found(item)[1].item, item))

    @app.get("/v1/queue/{item}/image", tags=["Review"])
    async def image(item: str) -> Response:
        """The image of an item, as it came."""
        content = await asyncio.to_thread(found(item)[1].image, item)
        return Response(content, headers={"Content-Disposition": "attachment"}, media_type="application/octet-stream")

    @app.post("/v1/feedback", tags=["Review"], openapi_extra=_body({"application/json": Feedback.model_json_schema()}))
    async def feedback(request: Request) -> Response:
        """What a person says of an item: known, of a class where the guard has classes, or unknown. It is kept, no more."""
        async with service.bodies.read(request) as body:
            if len(body) > MOST_FEEDBACK:
                raise Refused(413, f"feedback has at most {MOST_FEEDBACK:,} bytes: id, known and class of one item")
            try:
                said = Feedback.model_validate_json(body)
            except ValidationError as error:
                right = 'feedback is {"id": …, "known": true, "class": …} or {"id": …, "known": false}'
                raise InputError(right) from error
        model, folder = found(said.id)
        classes = classes_of(model.guard) if said.known else ()
        if said.name not in (classes or (None,)):
            right = f"one of {', '.join(classes[:12])}{', …' * (len(classes) > 12)}" if classes else "left out"
            raise InputError(f"class is {said.name!r:.100}; it must be {right}")
        return _json(await asyncio.to_thread(folder.review, said.id, said.known, said.name))


def _add_page(app: FastAPI, path: str, kind: str) -> None:
    content = (resources.files("outfield.serve") / "page" / (path[1:] or "page.html")).read_bytes()

    @app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> Response:
        return Response(content, media_type=kind)


def _metadata(model: Model) -> dict[str, Any]:
    """A guard's inputs and outputs, as the Open Inference Protocol asks for them: a request brings one kind of input."""
    inputs: list[dict[str, Any]] = [
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
    ]
    if model.guard.takes != "images":
        inputs = protocol.inputs_of(model.guard)
    elif model.guard.reader.scored == "images" and all(
        FIELDS[name].per_row and len(FIELDS[name].axes) == 2 for name in model.guard.widths
    ):
        inputs += protocol.inputs_of(model.guard)
    known = {} if model.guard.reader.scored == "boxes" else protocol.OUTPUTS  # of boxes infer has no place for any
    outputs = [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in known.items()]
    return {"name": model.name, "versions": ["1"], "platform": "outfield_guard", "inputs": inputs, "outputs": outputs}


def _about(model: Model) -> dict[str, Any]:
    """What the page shows of a guard."""
    guard = model.guard
    named = guard.backbone if guard.reader.scored == "images" else guard.reader
    scores = guard.threshold.reference.numpy()
    counts, edges = np.histogram(scores, BINS)
    places = np.unique(np.linspace(0, len(scores) - 1, SCORES).round().astype(int))
    return {
        "name": model.name,
        "network": getattr(named, "name", repr(guard)),
        "judges": guard.reader.scored,
        "inputs": None if guard.takes == "images" else protocol.inputs_of(guard),
        "fingerprint": guard.fingerprint[:16],
        "review": None if model.queue is None else {**model.queue.told, "classes": classes_of(guard)},
        "classes": [*guard.names],
        "members": [*guard.members],
        "threshold": guard.threshold.value,
        "keep": guard.threshold.keep,
        "calibration": len(scores),
        "scores": scores[places].tolist(),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


# The gate: tokens, headers that every answer carries, one log line and one count a request

HEADERS = {  # of every answer: nothing is loaded from elsewhere, and no script is run but ours
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN = (*PAGE, "/v2/health/live", "/v2/health/ready")  # without a token: the page itself, and whether the service runs


class Gate:
    """Everything passes here on its way in and out."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self._headers = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.monotonic(), 0
        scope["state"] = {"began": began}

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ending = [] if self.service.ready else [(b"connection", b"close")]  # the next request goes elsewhere
                message["headers"] = [*message.get("headers", []), *self._headers, *ending]
            await send(message)

        try:
            check_head(scope, self.service.settings.token)
            await self.app(scope, receive, sent)
        except Refused as refused:
            refused.headers = {**(refused.headers or {}), "Connection": "close"}
            await drain(Request(scope, receive), UNKNOWN_CLIENT)
            await refusal(refused)(scope, receive, sent)
        except ClientDisconnect:
            status = status or 499
        except Exception:
            log.exception("failed")
            if status == 0:
                await refusal(Refused(500, "the service failed; its log says why"))(scope, receive, sent)
        self._finish(scope, status, time.monotonic() - began)

    def _finish(self, scope: Scope, status: int, seconds: float) -> None:
        route, counts = getattr(scope.get("route"), "path", "other"), self.service.counts
        counts.requests.labels(route, str(status)).inc()
        about: dict[str, Any] = scope["state"].get("about", {})
        if about and status == 200:
            counts.seconds.labels(about["guard"]).observe(seconds)
        level = logging.INFO if status < 500 else logging.WARNING
        # Parts that are not of our own addresses come from clients, and may be secrets that were put in the wrong place.
        known = "/".join(getattr(one, "path", "") for one in scope["app"].routes).split("/")
        ours = {"1", *self.service.models, *known}
        path = "/".join(part if part in ours else "…" for part in scope["path"].split("/"))
        told = {"method": scope["method"], "path": path, "status": status, "ms": round(1000 * seconds, 2)}
        tell(level, "request", **told, **about)
        if self.service.otlp is not None:
            self.service.otlp.request(Headers(scope=scope), scope["method"], route, status, seconds, about)


def check_head(scope: Scope, token: str | None) -> None:
    """Refuse requests without the token, and pages of other sites in the browser of a client who has it."""
    headers = Headers(scope=scope)
    if "transfer-encoding" in headers and ("content-length" in headers or scope.get("http_version") == "1.0"):
        # h11 takes these; a proxy in front may believe that the request ends elsewhere (RFC 9112, 6.1).
        message = "the request has a Transfer-Encoding beside a Content-Length or HTTP/1.0; send a Content-Length alone"
        raise Refused(400, message)
    host, origin = headers.get("host"), headers.get("origin")
    try:
        name = urlsplit(f"//{host or ''}").hostname
        foreign = origin is not None and urlsplit(origin).netloc != host
    except ValueError as error:
        raise Refused(400, f"Host or Origin is no address: {error}") from error
    if foreign:
        raise Refused(403, "this service answers no pages of other places")
    here = scope.get("server")
    if token is None:
        # A foreign host name that leads to this machine's own address (DNS rebinding): its pages would pass for ours.
        if name is not None and here is not None and _is_loopback(str(here[0])) and not _is_loopback(name):
            what = "without a token only localhost and 127.0.0.1 are answered"
            raise Refused(403, f"{what}; ask for those, or set a token")
        return
    kind, _, given = headers.get("authorization", "").partition(" ")
    good = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())
    if scope["path"] not in OPEN and not (good and kind.lower() == "bearer"):
        raise Refused(401, "send the token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})


def _is_loopback(name: str) -> bool:
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
