"""Streams of visual domains: the same classes in every task, drawn, painted or photographed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manymodes.errors import require, unknown
from manymodes.streams.split import Pool, Splits, make_tasks, stratified
from manymodes.task import Data, Stream


def domain_stream(
    name: str,
    labels: Tensor,
    domain_of: Tensor,
    domains: Sequence[str],
    select: Callable[[Tensor, Tensor, bool], Data],
    *,
    splits: Splits | None,
    class_names: Sequence[str],
    input_shape: tuple[int, ...],
    limit: int | None,
    seed: int,
    info: dict[str, Any],
) -> Stream:
    """One task per domain; without `splits` every class of every domain is cut 70/10/20."""
    groups = domain_of * len(class_names) + labels
    pool = Pool(
        name=name,
        labels=labels,
        class_names=tuple(class_names),
        splits=stratified(groups, seed) if splits is None else splits,
        select=select,
        input_shape=input_shape,
        info={**info, "class_order": list(class_names)},
    )
    return make_tasks(pool, domain_of, domains, scenario="instance", limit=limit, seed=seed)


def official_splits(is_test: np.ndarray[Any, Any], groups: Tensor, seed: int) -> Splits:
    """The official test samples; the official training samples cut 90/10 into train and val."""
    train, test = (torch.from_numpy(np.flatnonzero(is_test == part)) for part in (False, True))
    cut = stratified(groups[train], seed, (0.9, 0.1, 0.0))
    return Splits(train[cut.train], train[cut.val], test)


def check_domains(scenario: str, chosen: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The domains in the order asked for; only one scenario makes sense for them."""
    if scenario != "instance":
        raise unknown("scenario of a stream of domains", scenario, ("instance",))
    order = list(known) if chosen is None else [chosen] if isinstance(chosen, str) else list(chosen)
    for domain in order:
        if domain not in known:
            raise unknown("domain", domain, known)
    require(len(order) > 0, f"domains is empty: give some of {', '.join(known)}")
    require(len(set(order)) == len(order), f"domains={order}: each can come once only")
    return order
