"""What the numbers of a run depend on beside its configuration: versions, processor, threads, determinism."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manymodes.errors import UserError
from manymodes.version import __version__

# A change in one of these may change the last bits of the numbers that follow.
MATTERS = ("manymodes", "python", "torch", "numpy", "machine", "processor", "cuda", "processes")


def environment() -> dict[str, Any]:
    """For environment.json."""
    import numpy
    import torch

    from manymodes import distributed

    return {
        "manymodes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": distributed.count(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def changes(before: Any, now: dict[str, Any]) -> list[str]:
    """What is different now and may matter, as text.

    >>> changes({"torch": "2.6.0"}, {"torch": "2.7.0"})
    ['torch was 2.6.0, is 2.7.0']
    """
    before = before if isinstance(before, dict) else {}
    keys = [k for k in MATTERS if k in before and k in now and before[k] != now[k]]
    return [f"{k} was {before[k]}, is {now[k]}" for k in keys]


@contextmanager
def pinned(threads: int, deterministic: bool = False) -> Iterator[None]:
    """Compute with so many threads and, if asked, with deterministic algorithms only; restored afterwards."""
    import torch

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(threads)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    except (RuntimeError, UserError) as error:
        found = re.search(r"(\S+) does not have a deterministic implementation", str(error))
        if found is None:
            raise
        raise UserError(
            f"--deterministic: {found[0]} in PyTorch: use another layer or device, or leave it out"
        ) from None
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
