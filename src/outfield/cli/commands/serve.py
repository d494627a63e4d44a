"""outfield serve."""

from __future__ import annotations

import os
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from outfield.cli.app import Device, command, log, say
from outfield.cli.options import File, Output, check_places
from outfield.errors import InputError, OutfieldError
from outfield.extras import check_installed
from outfield.progress import show_progress


@command(
    "outfield serve my.guard",
    "outfield serve my.guard other.guard --host 0.0.0.0 --port 8000 --token-file token.txt --drift-state drift.safetensors",
    "outfield serve --demo",
)
def serve(
    guards: Annotated[list[Path] | None, Argument(help="Guards; clients name one by its file.")] = None,
    demo: Annotated[bool, Option("--demo", help="Serve the small guard of CIFAR-10 that comes with the demo.")] = False,
    host: Annotated[str, Option(help="Address to listen at; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8000,
    token_file: Annotated[File, Option(help="File of the token for clients. Default: OUTFIELD_TOKEN.")] = None,
    tls_cert: Annotated[File, Option(help="Certificate chain (PEM), for HTTPS.")] = None,
    tls_key: Annotated[File, Option(help="Key of the certificate (PEM).")] = None,
    max_body: Annotated[int, Option(min=1, help="Maximum size of a request in bytes.")] = 33_554_432,
    max_pixels: Annotated[int, Option(min=1, help="Maximum pixels of an image.")] = 50_000_000,
    max_images: Annotated[int, Option(min=1, help="Most images or rows of a request.")] = 64,
    timeout: Annotated[float, Option(help="Seconds until a request is given up.")] = 30.0,
    queue: Annotated[int, Option(min=1, help="Most images or rows that wait; more are told to come back.")] = 256,
    batch: Annotated[int, Option(min=1, help="Most images that the network is given at once.")] = 32,
    drift_state: Annotated[File, Option(help="File that keeps what was seen over a restart (.safetensors).")] = None,
    keep: Annotated[
        File, Option(help="Folder that keeps refused inputs for people to look at. Default: none is kept.")
    ] = None,
    keep_share: Annotated[float, Option(help="Share of refused inputs to keep.")] = 1.0,
    keep_sample: Annotated[float, Option(help="Share of all inputs to keep, drawn whatever the verdict.")] = 0.0,
    keep_limit: Annotated[int, Option(min=1, help="Bytes to keep for each guard; the oldest are removed.")] = 2**30,
    otlp: Annotated[
        str | None,
        Option(help="OpenTelemetry collector for spans and metrics. Default: OTEL_EXPORTER_OTLP_ENDPOINT; else none."),
    ] = None,
    drain: Annotated[float, Option(min=0, help="Seconds to keep answering after SIGTERM, already not ready.")] = 5.0,
    device: Device = "auto",
) -> None:
    """Serve guards: the Open Inference Protocol (V2), plain uploads, Prometheus metrics, and a web page."""
    check_installed("serve", "fastapi", "uvicorn", "python_multipart", "prometheus_client")
    paths = [*(guards or []), *([_demo_guard()] if demo else [])]
    if not paths:
        raise InputError("there is no guard to serve; name a file, or try outfield serve --demo")
    inputs = [("--tls-cert", tls_cert), ("--tls-key", tls_key), *(("a guard", path) for path in paths)]
    check_places(inputs, [Output("--drift-state", drift_state, (".safetensors",))])

    from outfield.files import check_readable
    from outfield.modes import resolve_device
    from outfield.serve import Keep, Limits, Service, Settings, check_tls, json_lines, listen, make_server, read_token

    token = read_token(token_file, os.environ.get("OUTFIELD_TOKEN"))
    limits = Limits(max_body, max_pixels, max_images, timeout, queue, batch)
    if keep is None and (keep_sample > 0 or keep_share < 1):
        raise InputError("--keep-sample and --keep-share say how much is kept; name a folder for it: --keep FOLDER")
    kept = None if keep is None else Keep(keep, keep_share, keep_sample, keep_limit)
    otlp = otlp or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None
    settings = Settings(limits, token, drift_state, kept, device=device, drain=drain, otlp=otlp)
    resolve_device(device)
    check_tls(tls_cert, tls_key)
    for path in paths:  # before any is loaded, which takes seconds
        check_readable(path)
    show_progress(False)  # its line would stand between those of the log
    with listen(host, port) as listening, json_lines():
        if token is None and host not in ("127.0.0.1", "::1", "localhost"):
            log.warning("whoever reaches %s may use this service; --token-file asks clients for a token", host)
        service = Service(paths, settings)

        def ready(address: str) -> None:
            say(f"{' and '.join(service.models)} at {address} (Ctrl-C stops)")
            sys.stdout.flush()  # into a file or pipe, too

        tls = {"tls_cert": tls_cert, "tls_key": tls_key}
        try:
            server = make_server(service, host=host, port=port, listening=listening, ready=ready, **tls)
        except OutfieldError:
            service.stop()
            raise
        server.run()


def _demo_guard() -> Path:
    if find_spec("outfield_demo") is None:
        what = "the guard of the demo comes with its data, which is not installed"
        raise InputError(f"{what}; in a clone of the repository: pip install ./packages/outfield-demo")
    return Path(str(resources.files("outfield_demo") / "cifar10.guard"))
