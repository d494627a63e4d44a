"""Who does the work of a command: this process, or the workers of a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from outfield.errors import InputError
from outfield.extras import check_installed

LOCAL, RAY = "local", "ray"
Engine = Annotated[
    str, typer.Option(help="local: this process. ray: the workers of a Ray cluster.", metavar="local|ray")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Workers on Ray; as many as there are cores for, if absent.")]
Address = Annotated[
    str,
    typer.Option(
        help="The Ray cluster: local starts one here, auto finds one that runs.", metavar="auto|local|HOST:PORT"
    ),
]


def on_ray(engine: str, workers: int | None) -> bool:
    """Whether a Ray cluster does the work.

    Raises:
        InputError: There is no such engine, or workers are named without Ray.
        MissingExtraError: Ray is not installed.
    """
    if engine not in (LOCAL, RAY):
        raise InputError(f"--engine is {engine!r}; it must be local or ray")
    if engine == LOCAL and workers is not None:
        raise InputError(f"--workers is {workers}, but workers are for --engine ray; without it there is this process")
    if engine == RAY:
        check_installed("ray", "ray", "fsspec", "pyarrow")
    return engine == RAY
