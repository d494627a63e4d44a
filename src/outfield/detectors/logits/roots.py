"""The root of an increasing function of one number."""

from __future__ import annotations

import math
from collections.abc import Callable

STEPS = 200


def increasing_root(
    function: Callable[[float], tuple[float, float]], low: float, high: float, tolerance: float = 1e-12
) -> float:
    """The x in [low, high] at which an increasing function is 0; the nearer end where it is 0 nowhere between them.

    Newton's steps, as long as they stay in the bracket and halve the distance; else the bracket is halved, on a scale of
    logarithms. So it ends, whatever the function does between its ends.

    Args:
        function: x → (value, slope).
        low: Lower end, above 0.
        high: Upper end.
        tolerance: How far x may be off, as a share of x.
    """
    if function(low)[0] >= 0:
        return low
    if function(high)[0] <= 0:
        return high
    x, step = math.sqrt(low * high), high
    for _ in range(STEPS):
        value, slope = function(x)
        if abs(value) <= tolerance * x * abs(slope):
            break
        low, high = (x, high) if value < 0 else (low, x)
        converges = 2 * abs(value) <= abs(step * slope)
        newton = x - value / slope if converges and slope > 0 else low
        new = newton if low < newton < high else math.sqrt(low * high)
        step, x = new - x, new
        if abs(step) <= tolerance * x:
            break
    return x
