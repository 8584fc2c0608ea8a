"""What arrives: data, a task with its valid outputs, a stream of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from manymodes.errors import PastDataError, UserError, require, unknown

SCENARIOS = ("task", "class", "instance")


class Batch(NamedTuple):
    """Some samples of a data set: their numbers, inputs and targets."""

    index: Tensor  # type: ignore[assignment]  # not tuple.index: nobody searches a batch
    inputs: Tensor
    targets: Tensor


class Data(Protocol):
    """Samples by number. `targets` are output indices (S,); inputs come a batch at a time.

    `batches(order, generator)` yields one Batch per index tensor of `order`. Where the data augments,
    it does so only if a generator is given, drawing from that generator alone: this is what makes a
    resumed epoch equal to an uninterrupted one.
    """

    @property
    def targets(self) -> Tensor:
        """Output indices (S,)."""
        ...

    @property
    def augments(self) -> bool:
        """Whether training batches differ from draw to draw."""
        ...

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """One Batch per index tensor."""
        ...


class TensorData:
    """Samples in memory; `transform` turns a raw batch (uint8, say) into network input.

    >>> data = TensorData(torch.arange(6).view(3, 2), torch.tensor([0, 1, 0]), transform=Tensor.float)
    >>> next(data.batches([torch.tensor([2, 0])])).inputs.tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        transform: Callable[[Tensor], Tensor] | None = None,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
    ) -> None:
        require(inputs.dim() > 0, "inputs must have a first axis of samples, not be a single number")
        require(
            targets.dim() == 1,
            f"targets must have the shape (samples,), not {tuple(targets.shape)}: "
            "one-hot rows become numbers by targets.argmax(1)",
        )
        require(
            len(inputs) == len(targets),
            f"{len(inputs)} inputs but {len(targets)} targets: give one target per input",
        )
        self.inputs, self.targets = inputs, _whole(targets)
        self.transform, self.augment = transform, augment
        self.augments = augment is not None

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> TensorData:
        """The same data on a device, raw type kept."""
        return TensorData(self.inputs.to(device), self.targets.to(device), self.transform, self.augment)

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """Gather, augment (only with a generator), transform."""
        for index in order:
            index = torch.as_tensor(index)
            where = index.to(self.inputs.device)
            inputs = self.inputs.index_select(0, where)  # a quarter of the time of fancy indexing
            if self.augment is not None and generator is not None:
                inputs = self.augment(inputs, generator)
            if self.transform is not None:
                inputs = self.transform(inputs)
            yield Batch(index, inputs, self.targets.index_select(0, where))


class GuardedData:
    """A task's data as a strategy sees it: once closed, every read raises.

    The data is dropped on closing, so a reference kept by a strategy does not keep the data alive.
    """

    def __init__(self, data: Data, task: str) -> None:
        self._open: Data | None = data
        self._task = task

    def close(self) -> None:
        """The task is learnt: from now on nobody reads this."""
        self._open = None

    def _data(self) -> Data:
        if self._open is None:
            raise PastDataError(
                f"the data of task {self._task!r} was read after the task was learnt, by a strategy with "
                "rehearses = False; keep what you need as state, or declare rehearses = True"
            )
        return self._open

    def __len__(self) -> int:
        return len(self._data())

    @property
    def targets(self) -> Tensor:
        """The targets, while open."""
        return self._data().targets

    @property
    def augments(self) -> bool:
        """Whether training batches differ from draw to draw."""
        return self._data().augments

    def batches(self, order: Sequence[Tensor], generator: torch.Generator | None = None) -> Iterator[Batch]:
        """The batches, each checked: an iterator kept from an open task stops working too."""
        for batch in self._data().batches(order, generator):
            self._data()
            yield batch


@dataclass(frozen=True)
class Task:
    """A training phase: its data and `classes`, the outputs that are valid for it.

    Targets are output indices. `val` may be None: then what needs held-out data uses the training data.
    """

    name: str
    train: Data
    val: Data | None
    test: Data | None
    classes: tuple[int, ...]

    def guarded(self) -> tuple[Task, Callable[[], None]]:
        """The same task behind guards, and the function that closes them."""
        train = GuardedData(self.train, self.name)
        val = None if self.val is None else GuardedData(self.val, self.name)

        def close() -> None:
            train.close()
            if val is not None:
                val.close()

        return replace(self, train=train, val=val, test=None), close


@dataclass(frozen=True)
class Stream(Sequence[Task]):
    """A sequence of tasks, each made when asked for.

    `scenario` is "task" (the valid outputs are the task's own), "class" (those seen so far) or
    "instance" (all, always). `class_names[i]` names output i. `unseen` makes samples of classes that never
    arrive: a learner should be unsure of them.
    """

    name: str
    scenario: str
    num_outputs: int
    input_shape: tuple[int, ...]
    builders: tuple[Callable[[], Task], ...] = field(repr=False)
    class_names: tuple[str, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    unseen: Callable[[], Data] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise unknown("scenario", self.scenario, SCENARIOS)
        require(len(self.builders) > 0, f"stream {self.name!r} has no task")

    def __len__(self) -> int:
        return len(self.builders)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        if isinstance(index, slice):
            return replace(self, builders=self.builders[index])
        return self.builders[index]()

    def __iter__(self) -> Iterator[Task]:
        return (build() for build in self.builders)


def as_data(data: Any, targets: Any = None) -> Data:
    """Data from what people have: Data, (x, y), tensors or arrays, a TensorDataset, any map-style Dataset.

    >>> len(as_data(torch.zeros(5, 2), torch.zeros(5)))
    5
    """
    if targets is not None:
        return TensorData(_tensor(data, "inputs"), _tensor(targets, "targets"))
    if isinstance(data, TensorDataset):
        require(
            len(data.tensors) == 2,
            f"a TensorDataset to learn from has 2 tensors (inputs, targets), not {len(data.tensors)}",
        )
        return TensorData(data.tensors[0], data.tensors[1])
    if hasattr(data, "batches") and hasattr(data, "targets"):
        return cast(Data, data)
    if isinstance(data, tuple | list) and len(data) == 2:
        return TensorData(_tensor(data[0], "inputs"), _tensor(data[1], "targets"))
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, Dataset) or (by_number and not isinstance(data, str | Mapping)):
        from manymodes.streams.mapped import MappedData

        return MappedData(data)
    raise UserError(
        f"cannot learn from {type(data).__name__}: give a Task, (inputs, targets), a TensorDataset or a "
        "map-style Dataset of (input, target) pairs"
    )


def _whole(targets: Tensor) -> Tensor:
    whole = targets.long()
    if targets.is_floating_point():
        for sample in (whole != targets).nonzero().flatten().tolist():
            raise UserError(f"targets must be whole numbers, but sample {sample} has {targets[sample]:g}")
    return whole


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
    except (TypeError, ValueError) as error:
        why = str(error).split(". ")[0]
        raise UserError(f"{what} cannot become a tensor, give numbers (of classes: 0, 1, 2): {why}") from None
    return tensor.float() if tensor.dtype == torch.float64 else tensor
