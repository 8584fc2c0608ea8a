"""A-GEM's step as what it is: the closest vector to g among those that do not point against r."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize


def closest(g: NDArray[np.float64], r: NDArray[np.float64]) -> NDArray[np.float64]:
    """argmin_z 1/2 |z - g|^2 subject to z . r >= 0, by sequential quadratic programming."""
    found = minimize(
        lambda z: 0.5 * ((z - g) ** 2).sum(),
        np.zeros_like(g),
        jac=lambda z: z - g,
        constraints=[{"type": "ineq", "fun": lambda z: z @ r, "jac": lambda z: r}],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success, found.message
    solution: NDArray[np.float64] = found.x
    return solution
