"""The storage ledger: what a method keeps beside its parameters, in the paper's accounting."""

from __future__ import annotations

from collections.abc import Mapping

# One vector as long as the parameters each. Copies of old parameters (anchors, teachers) and samples
# (replay) are not among them: the ledger lists those apart.
COUNTED = ("parameters", "importances", "path", "reference_gradient")


def paper_multiple(storage: Mapping[str, int]) -> float:
    """(parameters + importances + path + reference gradient) / parameters, of `learner.storage()`.

    While a later task is learnt: EWC 2, SI 3, LwF 1, A-GEM 2, ER 1, as in the paper's appendix.

    >>> paper_multiple({"parameters": 10, "importances": 10, "anchors": 10, "path": 10, "replay_samples": 7})
    3.0
    """
    return sum(storage.get(kind, 0) for kind in COUNTED) / storage["parameters"]
