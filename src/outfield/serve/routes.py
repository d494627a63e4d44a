"""The addresses of the service, as a FastAPI application, and what they tell of guards and verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from outfield.errors import OutfieldError
from outfield.features import FIELDS
from outfield.guard import Verdict
from outfield.serve import inference_protocol as protocol
from outfield.serve.body import files_of
from outfield.serve.limits import Refused
from outfield.serve.middleware import Gate, refusal
from outfield.serve.models import Model
from outfield.serve.service import Service
from outfield.version import __version__

BINS = 40  # of the histogram of calibration scores
SCORES = 1001  # calibration scores that are told, at most: evenly spaced, with the least and the largest

_FILE = {"type": "string", "format": "binary"}
_FILES = {"type": "object", "properties": {"file": {"type": "array", "items": _FILE}}}
_TENSORS = {"application/json": {"schema": {"type": "object"}}, "application/octet-stream": {"schema": _FILE}}
_IMAGES = {"multipart/form-data": {"schema": _FILES}, "image/*": {"schema": _FILE}}
INFER: dict[str, Any] = {"requestBody": {"required": True, "content": _TENSORS}}
CHECK: dict[str, Any] = {"requestBody": {"required": True, "content": _IMAGES}}
PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/rows.js": ("rows.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def make_app(service: Service) -> FastAPI:
    """The application; it stops the service when it ends."""

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(title="Outfield", version=__version__, docs_url=None, redoc_url=None, lifespan=life)
    words = {"", "1", *service.models}
    app.add_middleware(Gate, token=service.settings.token, counts=service.counts, words=words)
    app.add_exception_handler(HTTPException, _refuse)
    app.add_exception_handler(Refused, _refuse)
    _add_health(app, service)
    _add_infer(app, service)
    _add_check(app, service)
    _add_telling(app, service)
    _add_page(app)
    words |= {part for route in app.routes for part in getattr(route, "path", "").split("/")}
    return app


async def _refuse(_: Request, error: Exception) -> Response:
    """Errors of the routes and of ours, in one shape."""
    if isinstance(error, HTTPException):
        error = Refused(error.status_code, str(error.detail), error.headers)
    assert isinstance(error, Refused)
    return refusal(error)


def _json(content: Any, status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")


def _deadline(request: Request, service: Service) -> float:
    return float(request.scope["state"]["began"] + service.settings.limits.timeout)


def _add_health(app: FastAPI, service: Service) -> None:
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
        """Whether the server takes requests."""
        return _json({"ready": service.ready}, 200 if service.ready else 503)

    @app.get("/v2/models/{name}/versions/{version}", tags=["Open Inference Protocol"], include_in_schema=False)
    @app.get("/v2/models/{name}", tags=["Open Inference Protocol"])
    async def metadata(name: str, version: str = "1") -> Response:
        """Inputs and outputs of a guard."""
        _check_version(version)
        return _json(_metadata(service.model(name)))

    @app.get("/v2/models/{name}/versions/{version}/ready", tags=["Open Inference Protocol"], include_in_schema=False)
    @app.get("/v2/models/{name}/ready", tags=["Open Inference Protocol"])
    async def model_ready(name: str, version: str = "1") -> Response:
        """Whether a guard takes requests."""
        _check_version(version)
        return _json({"name": service.model(name).name, "ready": service.ready}, 200 if service.ready else 503)


def _check_version(version: str) -> None:
    if version != "1":
        raise Refused(404, f"there is no version {version[:20]!r}; there is 1")


def _add_infer(app: FastAPI, service: Service) -> None:
    @app.post("/v2/models/{name}/versions/{version}/infer", tags=["Open Inference Protocol"], include_in_schema=False)
    @app.post("/v2/models/{name}/infer", tags=["Open Inference Protocol"], openapi_extra=INFER)
    async def infer(request: Request, name: str, version: str = "1") -> Response:
        """Scores, p-values, verdicts and labels of encoded images (BYTES), pixels (UINT8) or features (FP32)."""
        _check_version(version)
        model, deadline = service.model(name), _deadline(request, service)
        async with service.bodies.read(request, deadline) as body:
            of_table = model.guard.takes == "table"
            length = request.headers.get(protocol.HEADER_LENGTH)
            asked = await service.work.aside(protocol.parse, body, length, of_table)
            images = None if of_table else _images(asked)
            if images is None:
                verdicts = await service.work.rows(model, asked.inputs, deadline)
            else:
                found = await service.work.images(model, images, deadline)
                _count(service, request, model.name, found)
                verdicts = [_good(one) for one in found]
        _count(service, request, model.name, verdicts)
        content, json_length = protocol.answer(asked, model.name, verdicts)
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {protocol.HEADER_LENGTH: str(json_length)}
        return Response(content, headers=headers, media_type="application/octet-stream")


def _images(asked: protocol.Asked) -> list[bytes | np.ndarray] | None:
    """The images of a request; None where it brings rows of the network instead."""
    values = [*asked.inputs.values()]
    if all(isinstance(one, np.ndarray) and one.dtype == np.float32 for one in values):
        return None
    if len(values) != 1:
        raise Refused(400, "images are one input, encoded (BYTES) or as pixels (UINT8), without others")
    if isinstance(values[0], list):
        return [*values[0]]
    if values[0].ndim != 4 or values[0].shape[3] != 3:
        raise Refused(400, f"pixels have shape {[*values[0].shape]}; it must be [N, H, W, 3]")
    return [*values[0]]


def _good(found: Verdict | OutfieldError) -> Verdict:
    if isinstance(found, OutfieldError):
        raise Refused(400, str(found))
    return found


def _count(service: Service, request: Request, guard: str, found: Sequence[Verdict | OutfieldError]) -> None:
    """Count images that could not be read, and note for the log what was asked."""
    service.counts.samples.labels(guard, "error").inc(sum(isinstance(one, OutfieldError) for one in found))
    ood = sum(isinstance(one, Verdict) and bool(one.is_ood) for one in found)
    request.scope["state"].update(guard=guard, images=len(found), ood=ood)


def _add_check(app: FastAPI, service: Service) -> None:
    @app.post("/v1/check", tags=["Verdicts"], openapi_extra=CHECK)
    async def check(request: Request, guard: str | None = None) -> Response:
        """A verdict on each uploaded image, as ``outfield guard check --json`` prints it."""
        model, deadline = service.model(guard), _deadline(request, service)
        async with service.bodies.read(request, deadline) as body:
            files = await files_of(body, request.headers.get("content-type", ""), service.settings.limits)
            found = await service.work.images(model, [content for _, content in files], deadline)
        _count(service, request, model.name, found)
        verdicts = [
            Verdict.failed(name, str(one)) if isinstance(one, OutfieldError) else replace(one, file=name)
            for (name, _), one in zip(files, found, strict=True)
        ]
        return _json([_plain(one) for one in verdicts])


def _add_telling(app: FastAPI, service: Service) -> None:
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


def _add_page(app: FastAPI) -> None:
    folder = resources.files("outfield.serve") / "page"

    def add(path: str, content: bytes, kind: str) -> None:
        @app.api_route(path, methods=["GET", "HEAD"], include_in_schema=False)
        async def page() -> Response:
            return Response(content, media_type=kind)

    for path, (name, kind) in PAGE.items():
        add(path, (folder / name).read_bytes(), kind)


def _metadata(model: Model) -> dict[str, Any]:
    """A guard's inputs and outputs, as the Open Inference Protocol asks for them: a request brings one kind of input."""
    inputs: list[dict[str, Any]] = [
        {"name": "image", "datatype": "BYTES", "shape": [-1]},
        {"name": "pixels", "datatype": "UINT8", "shape": [-1, -1, -1, 3]},
    ]
    widths = model.guard.widths
    if model.guard.takes != "images":
        inputs = [*protocol.inputs_of(model.guard).values()]
    elif all(FIELDS[name].per_row and len(FIELDS[name].axes) == 2 for name in widths):
        inputs += [{"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in widths.items()]
    outputs = [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in protocol.OUTPUTS.items()]
    return {"name": model.name, "versions": ["1"], "platform": "outfield_guard", "inputs": inputs, "outputs": outputs}


def _about(model: Model) -> dict[str, Any]:
    """What the page shows of a guard."""
    guard = model.guard
    scores = guard.threshold.reference.numpy()
    counts, edges = np.histogram(scores, BINS)
    places = np.unique(np.linspace(0, len(scores) - 1, SCORES).round().astype(int))
    return {
        "name": model.name,
        "network": guard.backbone.name if guard.takes == "images" else repr(guard),
        "inputs": None if guard.takes == "images" else [*protocol.inputs_of(guard).values()],
        "fingerprint": guard.fingerprint[:16],
        "classes": [*guard.names],
        "members": [*guard.members],
        "threshold": guard.threshold.value,
        "keep": guard.threshold.keep,
        "calibration": len(scores),
        "scores": scores[places].tolist(),
        "histogram": {"counts": counts.tolist(), "edges": edges.tolist()},
    }


def _plain(one: Verdict) -> dict[str, Any]:
    """A verdict ready for JSON, which knows no infinite numbers: null stands for those."""
    told = one.to_dict()
    if isinstance(told["score"], float) and not math.isfinite(told["score"]):
        told["score"] = None
    return told
