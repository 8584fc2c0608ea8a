"""The path integral of gradient descent on a quadratic, worked out by hand."""

from __future__ import annotations


def on_quadratic(curvature: float, distance: float, rate: float, steps: int) -> tuple[float, float]:
    """(omega, change of theta) for L = curvature / 2 * theta^2 started at theta = distance.

    A step multiplies theta by r = 1 - rate * curvature and adds -g * change = rate * g^2 to omega, with
    g = curvature * theta: a geometric series, rate * (curvature * distance)^2 * (1 - r^2n) / (1 - r^2).
    """
    r = 1 - rate * curvature
    omega = rate * (curvature * distance) ** 2 * (1 - r ** (2 * steps)) / (1 - r**2)
    return omega, distance * (r**steps - 1)
