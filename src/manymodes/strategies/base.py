"""What every strategy is: state in modes, one visible loop, predictions, save and load."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from manymodes import distributed, penalties
from manymodes.batchnorm import whole_batch
from manymodes.compiled import compiled
from manymodes.errors import TrainingDiverged, UserError, require, unknown
from manymodes.flat import FlatModel, check_module
from manymodes.modes import Modes, joint
from manymodes.outputs import Valid, log_probabilities
from manymodes.precision import PRECISIONS, exactness
from manymodes.preparation import inputs_of
from manymodes.resting import features_of
from manymodes.signature import check_names, options_of
from manymodes.strategies.checks import check_inputs, check_options, check_outputs, check_task, probe
from manymodes.strategies.given import as_task, unlabelled
from manymodes.task import Batch, Data, Stream, Task
from manymodes.train import (
    Mean,
    Optimiser,
    gradient,
    randomness,
    shuffled,
    steps_per_epoch,
    training_batches,
)

if TYPE_CHECKING:
    from manymodes.arriving import Arriving, Observed

OPTIMISERS = ("adamw", "sgd")
SCHEDULES = ("1cycle", "constant")
LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
BATCHNORMS = ("train", "frozen")


class Training(TypedDict, total=False):
    """The keyword arguments that every strategy has; Strategy says what they mean."""

    epochs: int
    batch_size: int
    micro_batch: int
    lr: float
    optimiser: str
    schedule: str
    weight_decay: float
    precision: str
    layout: str
    compile: bool
    batchnorm: str
    device: str
    seed: int


@dataclass(frozen=True)
class Event:
    """One pass of one mode over a task's data, as reported while learning."""

    task: int
    name: str
    epoch: int
    epochs: int
    mode: int
    modes: int
    loss: float
    penalty: float
    drift: float
    seconds: float


class Strategy:
    """Learn one task after another with one vector or several; the base class fine-tunes.

    The loop is `begin -> epoch x epochs -> end`; a strategy overrides only what differs. Everything that
    must survive is in `state_dict`; everything that can be computed again from it and the task's data is
    made in `prepare`, which also runs when a task is resumed.

    Args:
        model: The network. It is copied; the learner never changes yours.
        epochs: Passes over each task's data.
        batch_size: Samples in a step.
        micro_batch: Samples computed with at once, their gradients added up (0: as many as fit).
        lr: Learning rate (the peak of the schedule).
        optimiser: "adamw" or "sgd" (momentum 0.9).
        schedule: "1cycle" over each task, or "constant".
        weight_decay: Decoupled weight decay.
        precision: "fp32", "tf32" (GPUs only), or "bf16" for forward passes under autocast.
        layout: Images in memory: "channels_last" or "contiguous". Which is faster depends on the machine.
        compile: Training steps through torch.compile (predictions never need a compiler).
        batchnorm: "train", or "frozen" to keep BatchNorm's statistics after task 1.
        device: "auto", "cpu", "cuda" or "cuda:1".
        seed: Every random number follows from it.
    """

    rehearses: ClassVar[bool] = False
    """Whether it may read earlier tasks' data; if not, a guard raises when it does."""
    paper: ClassVar[dict[str, Any]] = {
        "epochs": 200,
        "batch_size": 512,
        "lr": 0.1,
        "weight_decay": 0.01,
        "seed": 3407,
    }
    """The settings of the paper's Appendix A.1 (`--profile paper`)."""

    options: dict[str, Any]
    """The keyword arguments it was made with."""

    def __new__(cls, model: nn.Module, **options: Any) -> Self:
        """Remember the keyword arguments: they are the configuration of a saved learner."""
        check_names(cls.__name__, options, options_of(cls, skip=("model",)))
        learner = super().__new__(cls)
        learner.options = options
        return learner

    def __init__(
        self,
        model: nn.Module,
        *,
        epochs: int = 20,
        batch_size: int = 32,
        micro_batch: int = 0,
        lr: float = 2e-3,
        optimiser: str = "adamw",
        schedule: str = "1cycle",
        weight_decay: float = 0.0,
        precision: str = "fp32",
        layout: str = "channels_last",
        compile: bool = False,
        batchnorm: str = "train",
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        check_module(model)
        check_options(epochs=epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay, seed=seed,
                      micro_batch=micro_batch)  # fmt: skip
        for option, value, valid in (
            ("optimiser", optimiser, OPTIMISERS),
            ("schedule", schedule, SCHEDULES),
            ("precision", precision, PRECISIONS),
            ("layout", layout, LAYOUTS),
            ("batchnorm", batchnorm, BATCHNORMS),
        ):
            if value not in valid:
                raise unknown(option, value, valid)
        self.epochs, self.batch_size, self.lr, self.seed = epochs, batch_size, lr, seed
        self.optimiser, self.schedule, self.weight_decay = optimiser, schedule, weight_decay
        self.precision, self.layout, self.compile = precision, layout, compile
        self.batchnorm, self.device = batchnorm, device
        self.model = FlatModel(copy.deepcopy(model).to(_device(device)))
        self._compiled = compiled(self.model.module)  # nothing is compiled before it is called
        self.model.room = self.micro_batch = micro_batch
        self.modes = Modes.of(self.model)
        self.heads: list[tuple[int, ...]] = []
        self.epochs_done: int | None = None  # within the present task; None between tasks
        self.before: Modes | None = None  # the modes as they were when the present task began
        self.workspace: Path | None = None  # where a run keeps what is too large to be saved anew each time
        self.optimisers: list[Optimiser] = []
        self.about: dict[str, Any] = {}  # names of the outputs, how inputs are prepared: for its file
        self._num_outputs: int | None = None
        self._present: list[Any] | None = None  # which task it is in the middle of
        self._arriving: Arriving | None = None  # watches for drift, once `observe` was called
        self._arriving_options: dict[str, Any] = {}
        self._emit: Callable[[Event], None] = _silent
        self.use(0)

    # ---- the visible loop -------------------------------------------------------------------------

    def learn(
        self,
        data: Any,
        targets: Any = None,
        *,
        val: Any = None,
        classes: Sequence[int] | None = None,
        name: str | None = None,
        on_event: Callable[[Event], None] | None = None,
        on_epoch: Callable[[Strategy], None] | None = None,
    ) -> Self:
        """Learn a Task, (inputs, targets), a TensorDataset or any map-style Dataset.

        All or nothing: if learning fails, the learner is what it was before the call. `on_event` is told
        of each pass of a mode, `on_epoch` gets the learner after each epoch (a good moment to save it).
        """
        task = as_task(
            data, targets, val, classes, name, number=self.tasks_learnt + 1, device=self.model.device
        )
        self._check_present(task)
        distributed.same_(self.modes.theta, self.modes.buffers)
        outputs, undo = check_task(self, task), self._snapshot()
        self.about = self.about or {"input": inputs_of(task.train)}
        task = self.at_rest(task)
        visible, close = (task, _nothing) if self.rehearses else task.guarded()
        self._num_outputs, self._emit = outputs, on_event or _silent
        try:
            if self.epochs_done is None:
                self.before = Modes(undo["theta"], undo["buffers"])
                self._present = _identity(task)
            with exactness(self.precision, self.model.device):
                self._epochs(visible, on_epoch)
                self._end(visible)
        except BaseException:
            self.load_state_dict(undo)
            raise
        finally:
            close()
            self._emit = _silent
        self.optimisers, self.before, self.epochs_done, self._present = [], None, None, None
        self.heads.append(task.classes)
        self.use(0)
        return self

    def _epochs(self, task: Task, on_epoch: Callable[[Strategy], None] | None) -> None:
        if self.epochs_done is None:
            self.begin(task)
            self.epochs_done = 0
        self.prepare(task)
        while self.epochs_done < self.epochs:
            self.epoch(task)
            self.epochs_done += 1
            self.level()
            if on_epoch is not None:
                on_epoch(self)

    def observe(self, inputs: Any, targets: Any, **options: Any) -> Observed:
        """Take a batch of a stream without boundaries: a drift detector says when a new task begins.

        `options` are those of `manymodes.arriving.Arriving`; the first call's hold for all.
        """
        from manymodes.arriving import Arriving

        if self._arriving is None:
            self._arriving, self._arriving_options = Arriving(self, **options), options
        other = [name for name, value in options.items() if self._arriving_options.get(name) != value]
        require(not other, f"observe({', '.join(other)}): options cannot change after the first call")
        return self._arriving.observe(inputs, targets)

    def begin(self, task: Task) -> None:
        """A new task: fresh optimisers, one per mode."""
        self.optimisers = [self.new_optimiser(self.model.theta, task) for _ in range(len(self.modes))]

    def prepare(self, task: Task) -> None:
        """Make what follows from the state and the task's data; also runs on resuming."""

    def epoch(self, task: Task) -> None:
        """One pass of every mode over the data."""
        valid = self.valid(task.classes)
        for mode in range(len(self.modes)):
            self.pass_over(task, mode, lambda batch: self.loss(batch, valid))

    def level(self) -> None:
        """After an epoch: rounding must not drive the processes of a run apart."""
        distributed.same_(self.modes.theta, self.modes.buffers)

    def assemble(self) -> None:
        """Make the state whole in the first of several processes; all call it before that one saves."""

    def end(self, task: Task) -> None:
        """The task is over: consolidate."""

    def _end(self, task: Task) -> None:
        """`end`; the last step of all may have been the one too far, which no loss has told of."""
        try:
            self.end(task)
            check_outputs(self, task)
        except TrainingDiverged as error:
            raise TrainingDiverged(f"{error}, at the end of task {task.name!r}: {self._way_out}") from None

    # ---- the pieces of an epoch ---------------------------------------------------------------------

    def pass_over(self, task: Task, mode: int, loss: Callable[[Batch], Tensor]) -> None:
        """Train one mode on every batch of the task once, and report."""
        started, total = time.perf_counter(), Mean()
        self.use(mode)
        self.train_mode()
        with self.randomness(mode) as generator:
            order = shuffled(len(task.train), self.batch_size, generator)
            for batch in training_batches(task.train, order, generator, self.model.device):
                total.add(self.step(mode, batch, loss))
        self.report(task, mode, total.value(), time.perf_counter() - started)

    def step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        """One step: the gradient of the loss, then the optimiser."""
        value = gradient(self.model, loss, batch)
        self.optimisers[mode].step()
        return value

    def loss(self, batch: Batch, valid: Valid) -> Tensor:
        """The mean negative log-likelihood of a batch, over the valid outputs."""
        return self.loss_of(self.forward(batch.inputs), batch, valid)

    def loss_of(self, logits: Tensor, batch: Batch, valid: Valid) -> Tensor:
        """The same from logits: for losses that need more of them."""
        return cross_entropy(valid.logits(logits), valid.targets(batch.targets))

    def penalty(self, mode: int) -> float:
        """The present value of what is added to the loss (for reports)."""
        return 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits (S, C) of the bound vector."""
        if inputs.dim() == 4:  # one of the two may be four times faster; which, only a measurement tells
            inputs = inputs.contiguous(memory_format=LAYOUTS[self.layout])
        network = self._compiled if self.compile and self.model.module.training else self.model.module
        with whole_batch(self.model.module):
            if self.precision != "bf16":
                logits: Tensor = network(inputs)
                return logits
            with torch.autocast(self.model.device.type, torch.bfloat16):
                return network(inputs).float()

    # ---- predictions --------------------------------------------------------------------------------

    def predict(self, inputs: Any, classes: Iterable[int] | None = None) -> Tensor:
        """Probabilities (S, C): the average of the modes' distributions over the valid outputs.

        Without `classes` the valid outputs are those learnt so far (all, before the first task).
        """
        data = inputs if hasattr(inputs, "batches") else unlabelled(inputs)
        check_inputs("samples to predict", data)
        valid = self.valid_for(data, classes)
        try:
            data = features_of(self.model, data)
            log_rho_SK = joint(self.mode_log_probs(data, valid), self.log_weights(data, valid))
        except RuntimeError:
            probe(self, data)  # says so if it is the inputs that do not fit
            raise
        return valid.widen(log_rho_SK.exp())

    def valid_for(self, data: Data, classes: Iterable[int] | None) -> Valid:
        """The valid outputs for some data; also works before anything is learnt."""
        require(len(data) > 0, "there is no sample to predict")
        if self._num_outputs is None:
            self._num_outputs = probe(self, data)
        return self.valid(self._default_classes() if classes is None else classes)

    def mode_log_probs(self, data: Data, valid: Valid) -> Tensor:
        """Each mode's log-probabilities on the data, (N, S, K)."""
        rows, data = [], features_of(self.model, data)
        for theta, buffers in zip(self.modes.theta, self.modes.buffers, strict=True):
            with self.model.bound(theta, buffers), exactness(self.precision, self.model.device):
                rows.append(log_probabilities(self.model, data, valid, self.forward))
        return torch.stack(rows)

    def log_weights(self, data: Data, valid: Valid) -> Tensor | None:
        """How much each mode counts for each sample, log w (N, S); None: all alike."""
        return None

    def look(self, classes: Sequence[int]) -> nn.Module | None:
        """The same as a module on flattened inputs, for exported graphs."""
        return None

    @classmethod
    def beside(cls, options: Mapping[str, Any], model: nn.Module, stream: Stream) -> int:
        """Numbers kept beside the modes that predictions need; they count where capacities are made equal."""
        return 0

    def at_rest(self, task: Task) -> Task:
        """The task as the resting part of the network sees it, if there is one: computed once."""
        val = None if task.val is None else features_of(self.model, task.val)
        return replace(task, train=features_of(self.model, task.train), val=val)

    def valid(self, classes: Iterable[int]) -> Valid:
        """These classes as valid outputs."""
        assert self._num_outputs is not None
        return Valid(classes, self._num_outputs, self.model.device)

    def _default_classes(self) -> tuple[int, ...]:
        assert self._num_outputs is not None
        return tuple(sorted(set().union(*self.heads))) if self.heads else tuple(range(self._num_outputs))

    # ---- state --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything a continued learner needs: tensors, numbers, strings, lists and dicts of them."""
        return {
            "theta": self.modes.theta,
            "buffers": self.modes.buffers,
            "module_buffers": {name: buffer.clone() for name, buffer in self._module_buffers()},
            "heads": [list(head) for head in self.heads],
            "epochs_done": self.epochs_done,
            "present": self._present,
            "before": None if self.before is None else [self.before.theta, self.before.buffers],
            "num_outputs": self._num_outputs,
            "optimisers": [o.state_dict() | {"total_steps": o.total_steps} for o in self.optimisers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the learner that `state_dict` was taken from."""
        require(
            tuple(state["theta"].shape) == tuple(self.modes.theta.shape),
            f"the saved weights are {tuple(state['theta'].shape)} (modes, parameters), this learner has "
            f"{tuple(self.modes.theta.shape)}: give the same model and the same number of modes",
        )
        self.modes.theta.copy_(state["theta"])
        self.modes.buffers.copy_(state["buffers"])
        self.heads = [tuple(head) for head in state["heads"]]
        self.epochs_done, self._num_outputs = state["epochs_done"], state["num_outputs"]
        self._present = state["present"]
        for name, buffer in self._module_buffers():
            buffer.copy_(state["module_buffers"][name])
        before, device = state["before"], self.model.device
        self.before = None if before is None else Modes(before[0].to(device), before[1].to(device))
        self.optimisers = [self._restored(o) for o in state["optimisers"]]
        self.use(0)

    def _module_buffers(self) -> list[tuple[str, Tensor]]:
        """Buffers that are no part of a mode, such as BatchNorm's counters of batches."""
        in_modes = {segment.name for segment in self.model.buffer_segments}
        return [(n, b) for n, b in self.model.module.named_buffers() if n not in in_modes]

    def _check_present(self, task: Task) -> None:
        """A learner that was saved within a task goes on with that task."""
        if self._present is not None and self._present != _identity(task):
            name, _, count = self._present
            raise UserError(
                f"the learner is in the middle of task {name!r} ({count} samples, epoch {self.epochs_done} "
                f"of {self.epochs}), not of {task.name!r} ({len(task.train)} samples): give it that first"
            )

    def _snapshot(self) -> dict[str, Any]:
        """A state to go back to. Between tasks only the modes are ever changed in place."""
        state = self.state_dict()
        if self.epochs_done is not None:
            return copy.deepcopy(state)
        return state | {"theta": self.modes.theta.clone(), "buffers": self.modes.buffers.clone()}

    def recall(self, tasks: Sequence[Task]) -> None:
        """Give back earlier tasks to a loaded learner that keeps them; others ignore it."""

    def storage(self) -> dict[str, int]:
        """Numbers kept, by kind: measured from the live state."""
        return {"parameters": self.modes.theta.numel(), "buffers": self.modes.buffers.numel()}

    def save(self, path: str | Path) -> None:
        """Write the learner into one safetensors file (or see `manymodes.load` to read it)."""
        from manymodes.saving import save

        save(self, path)

    def save_pretrained(self, folder: str | Path, **options: Any) -> list[Path]:
        """A folder as the Hugging Face hub has models; see `manymodes.contrib.hub.save_pretrained`."""
        from manymodes.contrib.hub import save_pretrained

        return save_pretrained(self, folder, **options)

    @classmethod
    def from_pretrained(cls, name: str | Path, **options: Any) -> Self:
        """The learner of such a folder or of OWNER/NAME on the hub; see `manymodes.contrib.hub`."""
        from manymodes.contrib.hub import from_pretrained

        learner = from_pretrained(name, **options)
        require(isinstance(learner, cls), f"{name} holds a {type(learner).__name__}, not a {cls.__name__}")
        assert isinstance(learner, cls)
        return learner

    def push_to_hub(self, name: str, **options: Any) -> str:
        """Put the learner on the hub as OWNER/NAME; see `manymodes.contrib.hub.push_to_hub`."""
        from manymodes.contrib.hub import push_to_hub

        return push_to_hub(self, name, **options)

    # ---- small helpers ------------------------------------------------------------------------------

    @property
    def tasks_learnt(self) -> int:
        """How many tasks are learnt."""
        return len(self.heads)

    def use(self, mode: int) -> None:
        """Bind the module to a mode: from here on it computes with, and changes, that row."""
        self.model.bind(self.modes.theta[mode], self.modes.buffers[mode])

    def train_mode(self) -> None:
        """Train mode, except BatchNorm where it is frozen."""
        self.model.module.train()
        if self.batchnorm == "frozen" and self.tasks_learnt > 0:
            for module in self.model.module.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()

    def randomness(self, *what: object) -> Any:
        """The randomness of this task and epoch (and `what` else)."""
        return randomness(self.seed, self.tasks_learnt, self.epochs_done, *what)

    def new_optimiser(self, parameter: Tensor, task: Task) -> Optimiser:
        """An optimiser whose schedule spans the task."""
        return self._optimiser(parameter, self.epochs * steps_per_epoch(len(task.train), self.batch_size))

    def _optimiser(self, parameter: Tensor, total_steps: int) -> Optimiser:
        return Optimiser(
            parameter,
            name=self.optimiser,
            lr=self.lr,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            total_steps=total_steps,
        )

    def _restored(self, state: dict[str, Any]) -> Optimiser:
        optimiser = self._optimiser(self.model.theta, state["total_steps"])
        optimiser.load_state_dict(state)
        return optimiser

    def old_groups(self) -> list[Tensor]:
        """The groups of outputs learnt before, each with its own softmax."""
        return penalties.old_groups(self.heads, self.model.device)

    def report(self, task: Task, mode: int, loss: float, seconds: float) -> None:
        """Tell of one pass; a loss that is no number stops the learning."""
        penalty = self.penalty(mode)
        epoch = (self.epochs_done or 0) + 1
        if not math.isfinite(loss) or not _finite(self.modes.theta[mode]):
            raise TrainingDiverged(
                f"the loss became {loss} in task {task.name!r}, epoch {epoch}, mode {mode}: {self._way_out}"
            )
        self._emit(
            Event(
                self.tasks_learnt, task.name, epoch, self.epochs, mode, len(self.modes),
                loss, penalty, self.drift(mode), seconds,
            )
        )  # fmt: skip

    @property
    def _way_out(self) -> str:
        return f"try a lower lr (now {self.lr:g}), a smaller strength, or check the inputs"

    def drift(self, mode: int) -> float:
        """Mean squared change per parameter of a mode since the task began."""
        if self.before is None:
            return 0.0
        theta, before = self.modes.theta[mode], self.before.theta[mode]
        return float(penalties.squared_distance(theta, before)) / len(theta)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(
            f"device {name!r} is not there; valid: auto, cpu"
            + "".join(f", cuda:{i}" for i in range(torch.cuda.device_count()))
        ) from None
    return device


def _finite(vector: Tensor) -> bool:
    """Whether all numbers are finite; a finite sum says so at once."""
    return bool(torch.isfinite(vector.sum())) or bool(torch.isfinite(vector).all())


def _identity(task: Task) -> list[Any]:
    return [task.name, list(task.classes), len(task.train)]


def _nothing() -> None:
    pass


def _silent(event: Event) -> None:
    pass
