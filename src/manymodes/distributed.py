"""One run on several processes (torchrun): each works on its part of every batch, and all know the sums.

Whoever starts several processes and calls `joined` has them learn together: a learner's training batches,
predictions over a data set and Fisher sums are then shared out, and what comes of them is the same for all.
With a single process every function here does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from manymodes import neighbours
from manymodes.errors import UserError, one_line

Value = TypeVar("Value")
LAUNCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells its processes
# How long a process may work alone: the search, writing a checkpoint, an epoch of a mode more than others.
PATIENCE = timedelta(hours=6)
_alone = False  # whether this process works for itself at present
_near: neighbours.Neighbours | None = None  # all the processes, if they are on one machine


class Lost(UserError):
    """Another process of the run is gone."""


def count() -> int:
    """How many processes learn together."""
    if _alone:
        return 1
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def number() -> int:
    """Which of them this is."""
    return dist.get_rank() if count() > 1 else 0


def first() -> bool:
    """Whether this is the process that writes files and talks to people."""
    return number() == 0


@contextmanager
def joined() -> Iterator[None]:
    """Inside, the processes that torchrun started learn together; without torchrun nothing changes."""
    if not all(name in os.environ for name in LAUNCH) or count() > 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    store = None
    if os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if os.uname().sysname == "Darwin" else "lo")
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            store = _on_loopback(int(os.environ["MASTER_PORT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(timeout=PATIENCE, store=store, rank=rank, world_size=world)
    with _beside(neighbours.met(rank, world, everyone)):
        yield
    dist.destroy_process_group()  # not after an error: it would wait for the others


@contextmanager
def _beside(near: neighbours.Neighbours | None) -> Iterator[None]:
    """Inside, what lies in the processors' memory is exchanged there."""
    global _near
    before, _near = _near, near
    try:
        yield
    finally:
        _near = before
        if near is not None:
            near.close()


def _on_loopback(port: int) -> Any:
    """Where the processes of one machine meet; PyTorch's own store would listen on every interface."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank > 0:
        return dist.TCPStore("127.0.0.1", port, world, False, PATIENCE)  # type: ignore[attr-defined]
    listener = socket.create_server(("127.0.0.1", port))
    return dist.TCPStore("127.0.0.1", port, world, True, PATIENCE, master_listen_fd=listener.detach())  # type: ignore[attr-defined]


@contextmanager
def apart() -> Iterator[None]:
    """Inside, this process does all by itself, as if it were the only one."""
    global _alone
    before, _alone = _alone, True
    try:
        yield
    finally:
        _alone = before


# ---- who works on what ----------------------------------------------------------------------------------


def part(index: Tensor) -> Tensor:
    """What falls to this process of some samples: equal shares, the first ones larger by at most one.

    Samples that are fewer than the processes are everybody's.
    """
    shared = count() > 1 and len(index) >= count()
    return index.tensor_split(count())[number()] if shared else index


def gather(rows: Tensor, total: int) -> Tensor:
    """All `total` rows (total, ...), of which each process has computed its `part`."""
    if len(rows) == total:
        return rows
    shares = [len(share) for share in torch.arange(total).tensor_split(count())]
    padded = rows.new_zeros((shares[0], *rows.shape[1:]))
    padded[: len(rows)] = rows
    near = _sharing(padded)
    if near is not None:
        found = _call(near.gather, padded)
    else:
        found = [torch.empty_like(padded) for _ in shares]
        _call(dist.all_gather, found, padded)
    return torch.cat([some[:share] for some, share in zip(found, shares, strict=True)])


# ---- what all know --------------------------------------------------------------------------------------


def sum_(tensor: Tensor, divisor: Tensor | None = None) -> Tensor:
    """The sum over all processes, divided by something they agree on, in place."""
    if count() > 1:
        near = _sharing(tensor)
        if near is not None:
            _call(near.sum_, tensor, divisor)
            return tensor
        _call(dist.all_reduce, tensor)
    return tensor if divisor is None else tensor.div_(divisor)


def _sharing(tensor: Tensor) -> neighbours.Neighbours | None:
    """All the processes, where they can exchange the tensor through memory."""
    return _near if tensor.device.type == "cpu" else None


def total(value: int, device: torch.device) -> int:
    """The sum of everybody's numbers."""
    return value if count() == 1 else int(sum_(torch.tensor(value, device=device)))


def most(value: int, device: torch.device) -> int:
    """The largest of everybody's numbers."""
    if count() == 1:
        return value
    told = torch.tensor(value, device=device)
    _call(dist.all_reduce, told, dist.ReduceOp.MAX)
    return int(told)


def mean_(sums: Tensor, value: Tensor, samples: int) -> Tensor:
    """Of a gradient, added up over this process's samples, make the mean over everybody's, in place.

    Returns the mean of the others' and this one's `value`, the mean loss, likewise.
    """
    totals = sum_(torch.stack([value * samples, torch.full_like(value, samples)]))
    sum_(sums, totals[1])
    return totals[0] / totals[1]


def mean_of(value: float) -> float:
    """The mean of everybody's numbers."""
    return value if count() == 1 else float(sum_(torch.tensor(value, dtype=torch.float64))) / count()


def balance(own: int, other: int, device: torch.device) -> Tensor | float:
    """What makes a mean over `other` samples fit one over `own`: each process has its share of both.

    Where a loss adds two means, over batches of different sizes, and processes weigh it by the first.
    """
    if count() == 1:
        return 1.0
    totals = sum_(torch.tensor([own, other], dtype=torch.float32, device=device))
    return (other / totals[1]) / (own / totals[0])


def same_(*tensors: Tensor, source: int = 0) -> None:
    """The tensors of one process, the first unless told, for all."""
    if count() > 1:
        for tensor in tensors:
            _call(dist.broadcast, tensor, source)


def agreed(value: Value, source: int = 0) -> Value:
    """What one process, the first unless told, says: plain values."""
    if count() == 1:
        return value
    told = [value]
    _call(dist.broadcast_object_list, told, source)
    return told[0]


def everyone(value: Value) -> list[Value]:
    """What each process says, in their order: plain values."""
    if count() == 1:
        return [value]
    told = [value] * count()
    _call(dist.all_gather_object, told, value)
    return told


def anyone(flag: bool) -> bool:
    """Whether at least one process says so."""
    return any(everyone(flag))


def agreed_state(state: Any, source: int = 0) -> Any:
    """A nested state of one process, the first unless told, for all; its tensors travel as tensors."""
    if count() == 1:
        return state
    tensors: list[Tensor] = []

    def taken_out(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach().contiguous())
            return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)
        if isinstance(value, dict):
            return {key: taken_out(some) for key, some in value.items()}
        return [taken_out(some) for some in value] if isinstance(value, list | tuple) else value

    def put_back(value: Any) -> Any:
        if isinstance(value, _Place):
            own = number() == source
            tensor = tensors[value.number] if own else torch.empty(value.shape, dtype=value.dtype)
            tensor = tensor.cpu()
            same_(tensor, source=source)
            return tensor
        if isinstance(value, dict):
            return {key: put_back(some) for key, some in value.items()}
        return [put_back(some) for some in value] if isinstance(value, list) else value

    return put_back(agreed(taken_out(state), source))


class _Place:
    """Where a tensor was taken out."""

    def __init__(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.number, self.shape, self.dtype = number, shape, dtype


def _call(collective: Callable[..., Any], *arguments: Any) -> Any:
    """A collective call; if another process is gone, one line says so."""
    try:
        return collective(*arguments)
    except (RuntimeError, OSError) as error:
        raise Lost(
            f"one of the {count()} processes is gone; what it said is above ({one_line(error, 80)}). The "
            "same command goes on from the last checkpoint, with any number of processes"
        ) from None
