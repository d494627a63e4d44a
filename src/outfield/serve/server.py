"""Runs the service: sockets, signals, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from outfield.errors import InputError, as_ours
from outfield.serve.routes import make_app
from outfield.serve.service import Service
from outfield.serve.telemetry import tell

CONNECTIONS = 1024  # clients at a time
TLS = "--tls-cert {} and --tls-key {} cannot be used"


class PatientProtocol(H11Protocol):
    """HTTP/1.1 whose clients have as long for a first line and headers as uvicorn gives them between two requests."""

    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """Begin to count the seconds where no request has begun, and stop where one has."""
        begun = self.cycle is not None and not self.cycle.response_complete
        if begun and self._slow is not None:
            self._slow.cancel()
            self._slow = None
        elif not begun and self._slow is None:
            self._slow = self.loop.call_later(self.timeout_keep_alive, self.transport.close)


class Server(uvicorn.Server):
    """uvicorn's server, which ends with 0 when it is asked to end, reads guards again on SIGHUP, and calls ``ready``."""

    def __init__(
        self, config: uvicorn.Config, service: Service, listening: socket.socket, ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._service, self._listening, self._ready = service, listening, ready

    async def serve(self, sockets: Any = None) -> None:
        await super().serve([self._listening])

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: Any = None) -> None:
        await super().shutdown(sockets)
        if not self.force_exit:
            await asyncio.to_thread(self._service.stop)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """SIGINT finishes what was accepted, SIGTERM after a pause, a second signal without it; another SIGINT ends at once."""

        def hang_up(_: int, __: FrameType | None) -> None:
            threading.Thread(target=self._service.reload, name="outfield reload", daemon=True).start()

        def drain(number: int, frame: FrameType | None) -> None:
            """Let those who send requests find out that others are ready, and only then stop to listen."""
            if not self._service.ready:
                self.handle_exit(number, frame)
                return
            self._service.ready = False
            pause = threading.Timer(self._service.settings.drain, self.handle_exit, (number, frame))
            pause.daemon = True
            pause.start()

        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: drain, signal.SIGHUP: hang_up}
        in_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, one) for number, one in handlers.items()} if in_main else {}
        try:
            yield
        finally:
            for number, one in before.items():
                signal.signal(number, one)


def make_server(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    listening: socket.socket | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> Server:
    """A server that is not running yet; ``run`` runs it.

    Port 0 takes a free one. With a certificate chain and its key, both PEM, it speaks HTTPS. ``listening`` is what :func:`listen`
    gave, where it was asked already; ``ready`` is called with the address once clients can come.
    """
    limits = service.settings.limits
    config = uvicorn.Config(
        make_app(service), host=host, port=port, http=PatientProtocol, ws="none", loop="asyncio", lifespan="off",
        log_config=None, access_log=False, server_header=False, proxy_headers=False,
        limit_concurrency=CONNECTIONS, timeout_keep_alive=max(1, round(min(limits.timeout, 20))),
        timeout_graceful_shutdown=round(limits.timeout) + 5, ssl_certfile=tls_cert, ssl_keyfile=tls_key,
    )  # fmt: skip
    with as_ours(TLS.format(tls_cert, tls_key), InputError, OSError, ValueError):
        config.load()
    listening = listening or listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"{'http' if tls_cert is None else 'https'}://{shown}:{listening.getsockname()[1]}/"

    def tell_ready() -> None:
        tell(logging.INFO, "serving", address=address, guards=[*service.models])
        ready(address)

    return Server(config, service, listening, tell_ready)


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Find out whether a certificate and its key can be used; the password of a key is asked for when it is used."""
    if (cert is None) != (key is None):
        raise InputError("TLS needs both, --tls-cert and --tls-key")
    if cert is not None and key is not None:
        with as_ours(TLS.format(cert, key), InputError, OSError, ValueError):
            if b"ENCRYPTED" not in key.read_bytes():
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; clients that come before the server runs wait."""
    with as_ours(f"cannot listen at {host}, port {port}", InputError, after="; choose another --host or --port"):
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
