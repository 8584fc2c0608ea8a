"""Which Ray cluster, and how to reach it or start one."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from manymodes.errors import UserError, one_line

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # at 0, a Ray that is started here listens on loopback only
REACH = 10.0  # seconds to wait for a cluster's first answer
STORE = 128 * 2**20  # bytes of shared memory for such a Ray: what travels here is small


@dataclass(frozen=True)
class Cluster:
    """Which Ray cluster, and what share of a GPU each run gets.

    Args:
        address: HOST:PORT, "auto" (the one on this machine); None: RAY_ADDRESS, or one of its own that
            lives as long as the command.
        gpus_per_run: 0.5 puts two runs on each GPU; 0 is the processor alone; None: 1 where there are any.
    """

    address: str | None = None
    gpus_per_run: float | None = None


def gpus(ray: Any, cluster: Cluster) -> float:
    """The share of a GPU for each run."""
    there = float(ray.cluster_resources().get("GPU", 0))
    wanted = cluster.gpus_per_run
    if wanted is None:
        return 1.0 if there else 0.0
    if wanted > there and cluster.address is None and "RAY_ADDRESS" not in os.environ:
        raise UserError(
            f"--gpus-per-run {wanted:g}: this machine has {there:g} GPUs; give less, or the --address of a "
            "cluster with GPUs"
        )
    if wanted > there:
        print(
            f"manymodes: waiting for a machine with a GPU to join the cluster (it has {there:g})", flush=True
        )
    return wanted


@contextmanager
def connected(cluster: Cluster) -> Iterator[Any]:
    """Ray, connected to the cluster, or to one of its own that ends with the block."""
    address = cluster.address or os.environ.get("RAY_ADDRESS")
    _check(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody outside
    if address is None:
        os.environ.setdefault(LOOPBACK, "0")
        if os.environ.setdefault("RAY_AUTH_MODE", "token") == "token":
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # known to its processes only
    try:
        import ray
    except ImportError:
        raise UserError('--engine ray needs Ray: pip install "manymodes[ray]"') from None
    if ray.is_initialized():  # by whoever uses this as a library
        yield ray
        return
    with ExitStack() as stack:
        options: dict[str, Any] = {
            "address": address or "local",
            "logging_level": "ERROR",
            "log_to_driver": False,
        }
        if address is None:
            folder = tempfile.mkdtemp(prefix="ray-")
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            options |= {"include_dashboard": False, "object_store_memory": STORE, "_temp_dir": folder}
        stack.callback(ray.shutdown)
        try:
            with _signals_kept():
                ray.init(**options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            what = f"--address {address}: no Ray cluster to work with" if address else "Ray does not start"
            raise UserError(f"{what} ({one_line(error, 150)})") from None
        yield ray


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, and with it the chance to save; it is given back to who had it."""
    if threading.current_thread() is not threading.main_thread():  # there Ray takes nothing
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(address: str | None) -> None:
    """Ray itself would try for minutes to reach somebody who is not there."""
    if address is None or address in ("auto", "local") or "://" in address:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--address must be HOST:PORT or auto, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({error}): `ray start --head` starts one and says where"
        ) from None
