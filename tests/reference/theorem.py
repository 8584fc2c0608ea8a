"""Theorem 1's pi by loops, straight from the formula."""

from __future__ import annotations

import numpy as np


def pi(theta_KNP: np.ndarray, mtl_P: np.ndarray, single_KP: np.ndarray, single_mtl_P: np.ndarray) -> float:
    """Vectors before task 1 (row 0) and after each; a mode's tasks are those from 2 on in which it moved."""
    tasks = len(theta_KNP) - 1
    alone = sum(float(np.mean((single_KP[t] - single_mtl_P) ** 2)) for t in range(2, tasks + 1))
    total = 0.0
    for i in range(theta_KNP.shape[1]):
        own = [
            t for t in range(2, tasks + 1) if not np.array_equal(theta_KNP[t, i], theta_KNP[t - 1, i])
        ] or [1]
        total += sum(float(np.mean((theta_KNP[t, i] - mtl_P) ** 2)) for t in own) - alone
    return total
