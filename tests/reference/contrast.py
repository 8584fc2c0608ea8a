"""How different two colours are: WCAG contrast, and distance as the colour-blind see it."""

from __future__ import annotations

import numpy as np

# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(color: str) -> np.ndarray:
    """Linear RGB of #rrggbb."""
    value = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """WCAG: (L1 + 0.05) / (L2 + 0.05), the lighter over the darker."""
    low, high = sorted(float(TO_XYZ[1] @ linear(color)) for color in (first, second))
    return (high + 0.05) / (low + 0.05)


def lab(color: str, blindness: str = "none") -> np.ndarray:
    """CIE L*a*b* of a colour as seen with a kind of colour-blindness."""
    seen = np.clip(BLINDNESS[blindness] @ linear(color), 0, 1)
    ratio = (TO_XYZ @ seen) / (TO_XYZ @ np.ones(3))
    f = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(first: str, second: str, blindness: str = "none") -> float:
    """CIE76 colour difference; 2.3 is about the least that anyone notices."""
    return float(np.linalg.norm(lab(first, blindness) - lab(second, blindness)))
