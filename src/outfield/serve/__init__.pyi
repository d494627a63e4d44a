"""Made by tools/stubs.py from __init__.py: what type checkers and editors see."""

from outfield.serve.limits import Keep as Keep
from outfield.serve.limits import Limits as Limits
from outfield.serve.limits import Settings as Settings
from outfield.serve.limits import read_token as read_token
from outfield.serve.server import check_tls as check_tls
from outfield.serve.server import listen as listen
from outfield.serve.server import make_server as make_server
from outfield.serve.service import Service as Service
from outfield.serve.telemetry import json_lines as json_lines

__all__ = [
    "Keep",
    "Limits",
    "Service",
    "Settings",
    "check_tls",
    "json_lines",
    "listen",
    "make_server",
    "read_token",
]
