"""MOTA, Mode-Optimized Task Allocation ("Multiple Modes for Continual Learning", Algorithms 1 to 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from manymodes import fisher, penalties
from manymodes.backtracking import Choice
from manymodes.checkpoints import Checkpoints
from manymodes.errors import require, unknown
from manymodes.known import known
from manymodes.looking import looking, sample_count
from manymodes.modes import Modes, joint_loss
from manymodes.observe import Curves
from manymodes.outputs import Valid, of_targets
from manymodes.penalties import Quadratic, distances, distillation, distillation_with_gradient
from manymodes.resting import Resting
from manymodes.strategies.allocation import Allocation, expected, flattened
from manymodes.strategies.at_once import AtOnce, owner
from manymodes.strategies.base import Strategy, Training
from manymodes.strategies.checks import check_options
from manymodes.strategies.ewc import ANCHORS, KINDS
from manymodes.strategies.teachers import Teacher
from manymodes.task import Batch, Data, Stream, Task
from manymodes.train import Mean, gradient, over

CHOICES = {
    "fisher": ("joint", "mode"),
    "fisher_kind": KINDS,
    "anchor": ANCHORS,
    "drift": ("fisher", "function", "both"),
    "order": ("fixed", "rigidity"),
    "search": ("val", "train"),
    "teacher": ("mode", "joint"),
    "start": ("own", "latest", "heir"),
    "weighting": ("equal", "familiar"),
}


SKETCH = 256

# What became of a mode in an epoch: its log p(true class) on the training data, and what the search needs.
Turn = tuple[Tensor | None, tuple[Tensor, float] | None]


class MOTA(AtOnce):
    """N modes, trained apart on task 1; each new task moves only the modes that need to move.

    Task 1 (initialize_task1): see Separated. Later (update_parameters), for each mode i in turn:
    L_i = -log rho(y|x) + strength / 2 * sum_d F_d (theta_i - theta_i_prev)^2, where rho is the mean of the
    modes' distributions and the other modes' share of it is looked up, not computed. At the end each mode
    is rewound to the epoch at which -log rho + drift_weight * sum_i drift_i is smallest together.

    Args:
        model: The network; it is copied.
        modes: N, how many modes. One mode without backtracking is EWC.
        strength: beta_min, how strongly the Fisher distance holds a mode.
        separation: beta_max, how strongly modes are driven apart on task 1.
        fisher: "joint" holds a mode only to what it is responsible for, "mode" to all it predicts itself.
        fisher_kind: "empirical", "sampled" or "exact".
        fisher_samples: Use at most this many samples of a task for the Fisher (0: all).
        anchor: "previous" (the paper's formula) or "merged" (one exact quadratic per task).
        drift: What distance means: "fisher" (parameters), "function" (outputs: distillation) or "both".
        distillation: Weight of the function distance.
        temperature: Softens the distributions that are compared by it.
        teacher: A mode is compared with its own earlier outputs ("mode") or the average's ("joint").
        joint_weight: Share of the joint loss; the rest is the mode's own loss. 1 is the paper.
        order: Modes move in "fixed" order, or the least rigid (smallest total importance) first.
        backtracking: Rewind modes to the jointly best checkpoints at the end of a task.
        drift_weight: Weight of the drift against the loss in that choice.
        search: Choose on held-out ("val") or training data.
        search_seconds: Time limit of the search; past it the best found is taken, with its certificate.
        mode_parallel: After task 1 modes learn at the same time, each on what the others were an epoch ago;
            several processes (torchrun) own some of the modes each and exchange little.
        movers: How many modes a task moves, taking turns; 0: all of them, as in the paper.
        start: Where a mode begins that moves for the first time: at its "own" vector (all modes learn task
            1, apart), or, one mover at a time, at the "latest" mover's, owing nothing to that one's tasks
            or everything ("heir": its springs and old outputs too).
        weighting: How much each mode counts: "equal" is the paper; "familiar": as far as the input looks like
            those of tasks that the mode learnt, among tasks with one of the valid outputs (Allocation).
        sketch: How many numbers of an input are looked at for that.
        sharpness: How surely tasks are told apart by that: densities are taken to this power.
        **training: See Strategy.
    """

    paper: ClassVar[dict[str, Any]] = Strategy.paper | {
        "modes": 2, "strength": 1000.0, "separation": 100.0, "fisher": "mode", "anchor": "previous",
        "drift": "fisher", "joint_weight": 1.0, "order": "fixed", "drift_weight": 1.0, "search": "train",
    }  # fmt: skip

    def __init__(
        self,
        model: nn.Module,
        *,
        modes: int = 2,
        strength: float = 100.0,
        separation: float = 1.0,
        fisher: str = "joint",
        fisher_kind: str = "empirical",
        fisher_samples: int = 0,
        anchor: str = "previous",
        drift: str = "both",
        distillation: float = 1.0,
        temperature: float = 2.0,
        teacher: str = "mode",
        joint_weight: float = 0.5,
        order: str = "fixed",
        backtracking: bool = True,
        drift_weight: float = 0.1,
        search: str = "val",
        search_seconds: float = 10.0,
        mode_parallel: bool = False,
        movers: int = 0,
        start: str = "own",
        weighting: str = "equal",
        sketch: int = SKETCH,
        sharpness: float = 0.25,
        **training: Unpack[Training],
    ) -> None:
        super().__init__(model, modes=modes, separation=separation, mode_parallel=mode_parallel, **training)
        check_options(
            strength=strength, distillation=distillation, temperature=temperature, joint_weight=joint_weight,
            fisher_samples=fisher_samples, drift_weight=drift_weight, search_seconds=search_seconds,
            movers=movers, sketch=sketch, sharpness=sharpness,
        )  # fmt: skip
        require(joint_weight <= 1, f"joint_weight must be a number from 0 to 1, not {joint_weight!r}")
        given = {"fisher": fisher, "fisher_kind": fisher_kind, "anchor": anchor, "drift": drift,
                 "order": order, "search": search, "teacher": teacher,
                 "start": start, "weighting": weighting}  # fmt: skip
        for option, value in given.items():
            if value not in CHOICES[option]:
                raise unknown(option, value, CHOICES[option])
        self.strength = float(strength) if drift != "function" else 0.0
        self.distillation = float(distillation) if drift != "fisher" else 0.0
        self.temperature, self.shared_teacher = temperature, teacher == "joint"
        self.fisher, self.fisher_kind, self.fisher_samples, self.anchor = (
            fisher,
            fisher_kind,
            fisher_samples,
            anchor,
        )
        self.joint_weight, self.order, self.search = float(joint_weight), order, search
        self.backtracking, self.drift_weight, self.search_seconds = (
            backtracking,
            float(drift_weight),
            search_seconds,
        )
        require(movers <= modes, f"movers={movers}: there are {modes} modes (0: all of them move)")
        require(start == "own" or movers == 1, f"start={start!r} needs movers=1, not {movers}")
        require(movers == 0 or not mode_parallel, f"mode_parallel needs movers=0 (all modes), not {movers}")
        require(sketch > 0, f"sketch must be a whole number of at least 1, not {sketch!r}")
        self.movers, self.start = movers, start
        self.allocation = Allocation(modes, sketch, sharpness) if weighting == "familiar" else None
        self.knows: list[list[int]] = [[] for _ in range(modes)]  # the tasks that a mode is held to
        self.springs: dict[int, Quadratic] = {}
        self.choice: Choice | None = None
        self.surface: dict[str, Any] | None = None  # what it was chosen from, for reports
        self._checkpoints: Checkpoints | None = None
        self._curves = Curves(0, 1)  # like the checkpoints, but the losers too, and without weights
        self._groups: dict[int, list[Tensor]] = {}
        self._teachers: dict[int, Teacher] = {}
        self._search_teachers: dict[int, Teacher] = {}
        self._resting: Tensor | None = None  # each mode's log p(true class) on the training data, (N, S)
        self._at_rest: Modes | None = None  # the modes as they were when the epoch began, for mode_parallel
        self._distance = Mean()  # the function distance over the present pass, for the report

    @property
    def moving(self) -> list[int]:
        """The modes that the present task moves."""
        count = len(self.modes)
        if self.movers == 0 or (self.start == "own" and self.tasks_learnt == 0):
            return list(range(count))
        return sorted((self.tasks_learnt * self.movers + turn) % count for turn in range(self.movers))

    @property
    def separating(self) -> bool:
        """Not where a single mode learns task 1."""
        return super().separating and len(self.moving) > 1

    def begin(self, task: Task) -> None:
        """From task 2 on, the untouched modes are the first checkpoints."""
        if self.start != "own" and 0 < self.tasks_learnt < len(self.modes):
            self._succeed(self.moving[0])
        super().begin(task)
        self.choice = self.surface = None
        self._checkpoints = None
        if self.tasks_learnt > 0 and self.backtracking:
            self._checkpoints = self._new_checkpoints()
            self._curves = Curves(len(self.moving), self.epochs)

    def _new_checkpoints(self) -> Checkpoints:
        bases = None if self.before is None else [self.before.theta[mode] for mode in self.moving]
        return Checkpoints(len(self.moving), self.drift_weight, self.workspace, bases)

    def _succeed(self, mode: int) -> None:
        """A mode that never moved begins where the last mover stands."""
        latest = mode - 1
        self.modes.theta[mode].copy_(self.modes.theta[latest])
        self.modes.buffers[mode].copy_(self.modes.buffers[latest])
        self.before = Modes(self.modes.theta.clone(), self.modes.buffers.clone())
        if self.start == "heir":
            self.knows = [self.knows[latest] if m == mode else tasks for m, tasks in enumerate(self.knows)]
            if latest in self.springs:
                inherited = self.springs[latest].state_dict()
                spring = Quadratic.from_state(inherited, self.strength, self.model.device)
                assert spring is not None
                self.springs = self.springs | {mode: spring}

    def prepare(self, task: Task) -> None:
        """Look up what rests while a mode moves: the others' probabilities, and the teachers'."""
        self._resting, self._teachers, self._search_teachers = None, {}, {}
        if self.tasks_learnt == 0:
            return
        moving = self.moving
        if len(moving) > 1 and self.joint_weight > 0 and not task.train.augments:
            self._resting = self.modes.theta.new_empty(len(self.modes), len(task.train))
        if self.distillation > 0:
            known = {mode: [self.heads[t] for t in self.knows[mode]] for mode in moving}
            self._groups = {m: penalties.old_groups(heads, self.model.device) for m, heads in known.items()}
            self._teachers = {mode: self._teacher(mode, task.train) for mode in moving if known[mode]}
        searching = self._checkpoints is not None and self.epochs_done == 0
        for mode in moving:
            self._take(mode, self._seen(task, mode, searching), epoch=0)

    def epoch(self, task: Task) -> None:
        """Every mode in turn, the others at rest; or all at once, the others as they were an epoch ago."""
        if self.separating:
            self.separate(task)
            return
        valid, modes, epoch = self.valid(task.classes), range(len(self.modes)), (self.epochs_done or 0) + 1
        if self.tasks_learnt == 0:
            self.pass_over(task, 0, lambda batch: self.loss(batch, valid))
        elif self.mode_parallel:
            tables, evaluated = [self._rest_table(mode) for mode in modes], self._evaluates
            if evaluated:
                self._at_rest = Modes(self.modes.theta.clone(), self.modes.buffers.clone())
            turns = self.at_once(lambda m: self._turn(task, valid, m, tables[m]), weights=evaluated)
            self._at_rest = None
            for mode, turn in enumerate(turns):
                self._take(mode, turn, epoch, owner(mode))
        else:
            for mode in self._order():
                self._take(mode, self._turn(task, valid, mode, self._rest_table(mode)), epoch)

    def _turn(self, task: Task, valid: Valid, mode: int, table_S: Tensor | None) -> Turn:
        """Train one mode once, and see what became of it."""
        self._distance = Mean()
        self.pass_over(task, mode, partial(self._mode_loss, mode, valid, table_S))
        return self._seen(task, mode, searching=self._checkpoints is not None)

    def _take(self, mode: int, turn: Turn, epoch: int, holder: int = 0) -> None:
        """What the other modes and the search need to know."""
        row, measured = turn
        if row is not None and self._resting is not None:
            self._resting[mode] = row
        if measured is not None:
            self._keep(mode, epoch, *measured, holder)

    @property
    def _evaluates(self) -> bool:
        """Whether the other modes are evaluated on each batch, as there is nothing to look up."""
        return self._resting is None and len(self.moving) > 1 and self.joint_weight > 0

    def step(self, mode: int, batch: Batch, loss: Callable[[Batch], Tensor]) -> Tensor:
        """The springs' gradient is one fused multiply-add on the flat gradient."""
        value = gradient(self.model, loss, batch)
        if mode in self.springs and self.strength > 0:
            self.springs[mode].add_gradient(self.model.theta.data, self.model.grad)
        self.optimisers[mode].step()
        return value

    def end(self, task: Task) -> None:
        """Rewind the modes to their best checkpoints, then measure what each must keep."""
        if self.separating:
            self.settle(task)
        if self._checkpoints is not None:
            self._rewind()
        self._checkpoints, self._resting = None, None
        self._teachers, self._search_teachers, self._distance = {}, {}, Mean()
        self._consolidate(task)
        number, moving = self.tasks_learnt, self.moving
        self.knows = [[*tasks, number] if m in moving else tasks for m, tasks in enumerate(self.knows)]
        if self.allocation is not None:
            self.allocation = self.allocation.after(task, moving, self.model.device)

    # ---- the loss of one mode -------------------------------------------------------------------

    def _mode_loss(self, mode: int, valid: Valid, table_S: Tensor | None, batch: Batch) -> Tensor:
        # What rests is computed first: it may borrow the module.
        rest = None
        if table_S is not None:
            rest = table_S.index_select(0, batch.index.to(table_S.device))
        elif self._evaluates:
            rest = self._rest(mode, batch, valid)
        soft = self._teachers[mode](batch) if mode in self._teachers else None
        logits = self.forward(batch.inputs)
        if rest is None:
            loss = self.loss_of(logits, batch, valid)
            if soft is not None:
                distance = distillation(logits, soft, self._groups[mode], self.temperature)
                self._distance.add(distance.detach())
                loss = torch.add(loss, distance, alpha=self.distillation)
            return loss
        columns, targets = valid.logits(logits), valid.targets(batch.targets)
        value, gradient_SK = joint_loss(columns, targets, rest, len(self.moving), self.joint_weight)
        pull = valid.widen(gradient_SK)
        if soft is not None:
            towards = self._groups[mode], self.temperature
            distance, gradient = distillation_with_gradient(logits, soft, *towards)
            pull.add_(gradient, alpha=self.distillation)
            self._distance.add(distance)
            value = torch.add(value, distance, alpha=self.distillation)
        return known(logits, value, pull)

    def _rest_table(self, mode: int) -> Tensor | None:
        """log sum_{j != i} p_j(y|x) of every training sample, (S,): the others rest while mode i moves."""
        return None if self._resting is None else torch.logsumexp(self._resting[self._others(mode)], dim=0)

    def _others(self, mode: int) -> list[int]:
        return [m for m in self.moving if m != mode]

    @torch.no_grad()
    def _rest(self, mode: int, batch: Batch, valid: Valid) -> Tensor:
        """The same of a batch, computed: where inputs are augmented there is nothing to look up."""
        rows, targets = [], valid.targets(batch.targets)
        modes = self._at_rest or self.modes
        for other in self._others(mode):
            bound = self.model.bound(modes.theta[other], modes.buffers[other])
            with bound, self.model.evaluating():
                log_probs = log_softmax(valid.logits(self.forward(batch.inputs)), dim=1)
            rows.append(of_targets(log_probs, targets))
        return torch.logsumexp(torch.stack(rows), dim=0)

    def _teacher(self, mode: int, data: Data) -> Teacher:
        assert self.before is not None
        rows = self.moving if self.shared_teacher else [mode]
        frozen = Modes(self.before.theta[rows], self.before.buffers[rows])
        return Teacher(self.model, self.forward, frozen, self._groups[mode], self.temperature, data)

    def _order(self) -> list[int]:
        if self.order == "fixed":
            return self.moving
        rigidity = {mode: float(spring.importance.sum()) for mode, spring in self.springs.items()}
        return sorted(self.moving, key=lambda m: rigidity.get(m, 0.0))

    # ---- the end of a task ------------------------------------------------------------------------

    def _search_data(self, task: Task) -> Data:
        held_out = self.search == "val" and task.val is not None and len(task.val) > 0
        return task.val if held_out and task.val is not None else task.train

    def _seen(self, task: Task, mode: int, searching: bool) -> Turn:
        """What is to be known of a mode as it is; no sample is evaluated twice."""
        search, row, found = self._search_data(task), None, None
        if self._resting is not None:
            both = searching and search is task.train
            row, distance = self._evaluated(task, mode, task.train, both)
            found = (row, distance) if both else None
        if not searching:
            return row, None
        row_S, distance = found or self._evaluated(task, mode, search, distance=True)
        return row, (row_S.exp(), self._energy(mode) + self.distillation * distance)

    @torch.no_grad()
    def _evaluated(self, task: Task, mode: int, data: Data, distance: bool) -> tuple[Tensor, float]:
        """log p_i(y|x) of one mode on the data (S,), and its distance in function space if asked."""
        valid = self.valid(task.classes)
        teacher = self._teacher_on(task, mode, data) if distance and mode in self._teachers else None

        def compute(batch: Batch) -> Tensor:
            soft = None if teacher is None else teacher(batch)
            logits = self.forward(batch.inputs)
            own = of_targets(log_softmax(valid.logits(logits), dim=1), valid.targets(batch.targets))
            if soft is None:
                return own[:, None]
            return torch.stack([own, distances(logits, soft, self._groups[mode], self.temperature)], dim=1)

        with self.model.bound(self.modes.theta[mode], self.modes.buffers[mode]), looking(self.model):
            columns = over(data, compute, self.model.device, sample_count(self.model)).unbind(dim=1)
        # Rounding may take a distance of zero below it.
        return columns[0], max(0.0, float(columns[1].mean())) if len(columns) > 1 else 0.0

    def _teacher_on(self, task: Task, mode: int, data: Data) -> Teacher:
        """The mode's teacher on the data that is searched, made once."""
        if data is task.train:
            return self._teachers[mode]
        if mode not in self._search_teachers:
            self._search_teachers[mode] = self._teacher(mode, data)
        return self._search_teachers[mode]

    def _keep(self, mode: int, epoch: int, probabilities_S: Tensor, drift: float, holder: int = 0) -> None:
        assert self._checkpoints is not None
        theta, buffers = self.modes.theta[mode], self.modes.buffers[mode]
        place = self.moving.index(mode)
        self._checkpoints.add(place, epoch, theta, buffers, probabilities_S, drift, holder)
        self._curves.add(place, epoch, probabilities_S, drift)

    def assemble(self) -> None:
        """With the checkpoints' weights."""
        super().assemble()
        if self._checkpoints is not None:
            self._checkpoints.collect()

    def _rewind(self) -> None:
        assert self._checkpoints is not None
        self.choice = self._checkpoints.choose(self.search_seconds)
        self.surface = self._curves.surface(self._checkpoints.kept, self.choice, self.drift_weight)
        self._curves = Curves(0, 1)
        chosen = dict(zip(self.moving, self.choice.epochs, strict=True))
        for place, (mode, epoch) in enumerate(chosen.items()):
            self._checkpoints.load(place, epoch, self.modes.theta[mode], self.modes.buffers[mode])
        self.choice = replace(self.choice, epochs=tuple(chosen.get(m, 0) for m in range(len(self.modes))))

    def _consolidate(self, task: Task) -> None:
        """Add this task's importances: of the joint likelihood, or of each mode's own."""
        if self.strength == 0:
            return
        moving = self.moving
        rest = self._rest_probabilities(task) if self.fisher == "joint" and len(moving) > 1 else {}
        for mode in moving:
            self.use(mode)
            with self.randomness("fisher", mode) as generator:
                importance = fisher.diagonal_over(
                    self.model, task.train, self.fisher_kind, classes=task.classes,
                    rest=rest.get(mode), modes=len(moving),
                    generator=generator, samples=self.fisher_samples or None,
                )  # fmt: skip
            theta = self.modes.theta[mode]
            if mode not in self.springs:
                self.springs = self.springs | {mode: Quadratic(theta.clone(), importance, self.strength)}
            elif self.anchor == "merged":
                self.springs[mode].merge(theta, importance)
            else:
                self.springs[mode].accumulate(theta, importance)

    def _rest_probabilities(self, task: Task) -> dict[int, Tensor]:
        """For each mode that moved, the sum of the others' probabilities, (S, C)."""
        valid = self.valid(task.classes)
        probabilities = self.mode_log_probs(task.train, valid).exp()[self.moving]
        rest = (probabilities.sum(dim=0) - probabilities).clamp_min(0.0)
        return {mode: valid.widen(rows) for mode, rows in zip(self.moving, rest, strict=True)}

    # ---- predictions --------------------------------------------------------------------------------

    def look(self, classes: Sequence[int]) -> nn.Module | None:
        """By familiarity, where it is asked for."""
        return None if self.allocation is None else self.allocation.look(classes)

    def log_weights(self, data: Data, valid: Valid) -> Tensor | None:
        """By familiarity, where it is asked for."""
        if self.allocation is None:
            return None
        return self.allocation.weigh(data, valid.classes, self.model.device)

    @classmethod
    def beside(cls, options: Mapping[str, Any], model: nn.Module, stream: Stream) -> int:
        """What the modes' familiarity with inputs is told by."""
        if options.get("weighting", "equal") == "equal":
            return 0
        sample = torch.zeros(1, *stream.input_shape)
        seen = flattened(model.rest(sample) if isinstance(model, Resting) else sample)
        return expected(stream, seen.shape[1], options.get("sketch", SKETCH))

    # ---- state --------------------------------------------------------------------------------------

    def penalty(self, mode: int) -> float:
        """The energy of the mode's springs, and the function distance over the present pass."""
        distance = self.distillation * self._distance.value() if self._distance.count else 0.0
        return self._energy(mode) + distance

    def _energy(self, mode: int) -> float:
        spring = self.springs.get(mode)
        return 0.0 if spring is None else float(spring.value(self.modes.theta[mode]))

    def state_dict(self) -> dict[str, Any]:
        """With the springs and, within a task, the checkpoints that await backtracking."""
        checkpoints = None if self._checkpoints is None else self._checkpoints.state_dict()
        modes = range(len(self.modes)) if self.springs else ()
        springs = [self.springs[m].state_dict() if m in self.springs else None for m in modes]
        own = {"springs": springs, "checkpoints": checkpoints, "curves": self._curves.state_dict()}
        allocated = None if self.allocation is None else self.allocation.state_dict()
        return super().state_dict() | own | {"knows": self.knows, "allocation": allocated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """With the springs and the checkpoints."""
        super().load_state_dict(state)
        springs = [Quadratic.from_state(s, self.strength, self.model.device) for s in state["springs"]]
        self.springs = {mode: spring for mode, spring in enumerate(springs) if spring is not None}
        everything = [list(range(len(self.heads))) for _ in range(len(self.modes))]
        self.knows = state.get("knows", everything)  # files of before this was an option
        if self.allocation is not None:
            self.allocation = self.allocation.restored(state["allocation"], self.model.device)
        self._checkpoints, self._curves = None, Curves(0, 1)
        if state["checkpoints"] is not None:
            self._checkpoints = self._new_checkpoints()
            self._checkpoints.load_state_dict(state["checkpoints"])
            self._curves = Curves(len(self.moving), self.epochs)
            self._curves.load_state_dict(state["curves"])

    def storage(self) -> dict[str, int]:
        """Parameters, importances, anchors, teachers of all modes."""
        kept = sum(spring.importance.numel() for spring in self.springs.values())
        teachers = self.modes.theta.numel() if self.distillation > 0 and self.before is not None else 0
        looks = {} if self.allocation is None else {"statistics": self.allocation.storage()}
        return super().storage() | {"importances": kept, "anchors": kept, "teachers": teachers} | looks
