"""How a share is written, wherever a person reads it: "94.0 %"."""


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, with its sign.

    >>> percent(0.94), percent(0.04567, digits=2)
    ('94.0 %', '4.57 %')
    """
    return f"{in_percent(share, digits)} %"


def in_percent(share: float, digits: int = 1) -> str:
    """A share in percent, where a heading says so already."""
    return f"{100 * share:.{digits}f}"
