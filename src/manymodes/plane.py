"""The plane in which the path of some weights lies best: the geometry of loss landscapes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manymodes.train import seed_of

MARGIN = 0.3  # how far a grid reaches beyond the path, as a share of the path's extent
FLAT = 1e-6  # a direction with less than this share of the path's length is noise


class Plane(NamedTuple):
    """Two orthonormal directions (2, P), the path in their coordinates (K, 2), variance explained (2,)."""

    directions: Tensor
    path: Tensor
    explained: list[float]


def plane(path_KP: Tensor) -> Plane:
    """The plane through the last vector that is nearest to the path, in the least-squares sense.

    >>> found = plane(torch.tensor([[3.0, 0.0, 4.0], [3.0, 1.0, 0.0], [3.0, 0.0, 0.0]]))
    >>> found.path.abs().tolist(), [round(share, 3) for share in found.explained]
    ([[4.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.941, 0.059])
    """
    offsets = path_KP - path_KP[-1]
    # K is small: eigenvectors of the K x K matrix of products instead of an SVD of K x P.
    gram = (offsets @ offsets.T).double()
    values, vectors = torch.linalg.eigh(gram)
    largest = float(values[-1].clamp_min(0)) or 1.0
    generator = torch.Generator().manual_seed(seed_of("landscape"))
    rows: list[Tensor] = []
    explained = []
    for k in (-1, -2):
        enough = len(values) >= -k and float(values[k]) > FLAT**2 * largest
        row = (
            vectors[:, k].to(offsets) @ offsets
            if enough
            else torch.randn(path_KP.shape[1], generator=generator)
        )
        for other in rows:
            row = row - (row @ other) * other
        rows.append(row / row.norm())
        explained.append(
            float(values[k].clamp_min(0) / values.clamp_min(0).sum().clamp_min(1e-30)) if enough else 0.0
        )
    directions = torch.stack(rows)
    return Plane(directions, offsets @ directions.T, explained)


def axes(path_K2: Tensor, points: int) -> tuple[list[float], list[float]]:
    """Grid positions along both directions: a square around the path, with a margin."""
    low, high = path_K2.min(dim=0).values, path_K2.max(dim=0).values
    half = float((high - low).max()) * (0.5 + MARGIN) or 1.0
    middle = (low + high) / 2
    found = [torch.linspace(float(m) - half, float(m) + half, points).tolist() for m in middle]
    return found[0], found[1]
