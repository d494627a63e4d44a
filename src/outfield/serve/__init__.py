"""The service: a guard behind HTTP."""

from outfield.extras import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "telemetry": ("json_lines",),
        "server": ("check_tls", "listen", "make_server"),
        "service": ("Service",),
        "limits": ("Keep", "Limits", "Settings", "read_token"),
    },
)
