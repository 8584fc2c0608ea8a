"""Hyper-parameter search on validation data: every trial learns the stream, test data is never passed on."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import yaml

from manymodes.config import Config, build_learner, build_stream, fitted, plain
from manymodes.connection import Cluster
from manymodes.environment import pinned
from manymodes.errors import TrainingDiverged, UserError, require
from manymodes.files import read_json, reason, write_json, write_text
from manymodes.grid import do_all
from manymodes.interrupts import Interrupted
from manymodes.jobs import Outcome
from manymodes.locks import claim
from manymodes.run import evaluate
from manymodes.spaces import Space
from manymodes.sweep import SMALL, Run
from manymodes.task import Stream
from manymodes.train import seed_of
from manymodes.validation import validation_stream


@dataclass(frozen=True)
class Trial:
    """One setting and what it was worth."""

    number: int
    value: float  # mean over seeds of the final average validation accuracy
    settings: dict[str, Any]
    seconds: float
    diverged: bool


def score(config: Config, tasks: int = 0) -> float:
    """The average validation accuracy after the last of the (first) tasks."""
    stream = validation_stream(build_stream(config), tasks)
    learner = build_learner(config, stream)
    small = learner.model.theta.numel() <= SMALL
    with pinned(config.threads or (1 if small else torch.get_num_threads()), config.deterministic):
        for task in stream:
            learner.learn(task)
        seen, total = stream[-1].classes, 0.0
        for task in stream:
            assert task.test is not None
            total += evaluate(learner, task.test, seen if stream.scenario == "class" else task.classes)[0]
    return total / len(stream)


class Search:
    """A search in a directory; made again there, it goes on where it was stopped.

    The proposal of a trial depends on the search's seed, the trial's number and the finished trials before
    it, so that a search that was killed proposes what it would have proposed. With `jobs`, so many settings
    are proposed from the same trials before them and tried at the same time, each seed in a run directory:
    a trial that was stopped, or lost with its machine, goes on from its last checkpoint.
    """

    def __init__(
        self, config: Config, spaces: Sequence[Space], out: Path, *, seeds: Sequence[int], tasks: int = 0,
        jobs: int = 1, cluster: Cluster | None = None, capacity: int = 0,
    ) -> None:  # fmt: skip
        self.config, self.out, self.seeds, self.tasks = config, out, tuple(seeds), tasks
        self.capacity = capacity  # of all modes together: each trial's network is as wide as that allows
        self.jobs, self.cluster = jobs, cluster
        require(len(spaces) > 0, "nothing to search: give --space, e.g. --space strength=1e0..1e6:log")
        self.spaces = {f"{space.part}.{space.name}": space for space in spaces}
        require(len(self.spaces) == len(spaces), "an option has two spaces: give each --space once")
        self.trials: list[Trial] = []
        self._optuna = _optuna()

    def run(self, trials: int, on_trial: Callable[[Trial, Trial], None] = lambda one, best: None) -> Trial:
        """Search until `trials` trials are done, here or before; returns the best one."""
        require(trials >= 1, f"trials must be a whole number from 1, not {trials}")
        with _alone(self.out):
            self._read()
            while len(self.trials) < trials:
                first = len(self.trials)
                numbers = range(first, min(trials, first + self.jobs))
                alone = self.jobs == 1 and self.cluster is None
                for trial in [self._try(first)] if alone else self._try_together(numbers):
                    self.trials.append(trial)
                    self._write()
                    on_trial(trial, self.best)
                shutil.rmtree(self.out / "trials", ignore_errors=True)
            self._write()
        return self.best

    @property
    def best(self) -> Trial:
        """The trial of the highest value, the earliest of equals."""
        return max(self.trials, key=lambda trial: (trial.value, -trial.number))

    def configured(self, settings: dict[str, Any]) -> Config:
        """The configuration with these settings."""
        parts = {part: dict(getattr(self.config, part)) for part in ("strategy", "model")}
        for name, space in self.spaces.items():
            parts[space.part][space.name] = settings[name]
        config = replace(self.config, strategy=parts["strategy"], model=parts["model"])
        return fitted(config, self._stream, self.capacity) if self.capacity else config

    @cached_property
    def _stream(self) -> Stream:
        return build_stream(self.config)

    def _settings(self, number: int) -> dict[str, Any]:
        return (self._defaults() if number == 0 else None) or self._proposal(number)

    def _try_together(self, numbers: Sequence[int]) -> list[Trial]:
        """Several trials at the same time, on this machine or on the cluster."""
        settings = {number: self._settings(number) for number in numbers}
        options = {"view": partial(validation_stream, tasks=self.tasks), "record_trajectory": "false"}
        runs = [
            Run(
                replace(self.configured(settings[number]), seed=seed),
                self.out / "trials" / f"{number:04d}-{seed_of(settings[number]):016x}-seed{seed}", options,
            )
            for number in numbers for seed in self.seeds
        ]  # fmt: skip
        found: dict[int, Outcome] = {}
        do_all(runs, lambda outcome: found.update({outcome.number: outcome}),
               jobs=self.jobs, cluster=self.cluster)  # fmt: skip
        outcomes = [found.get(position) for position in range(len(runs))]
        if any(outcome is None or outcome.interrupted for outcome in outcomes):
            raise Interrupted("stopped")
        for outcome in outcomes:
            if outcome is not None and outcome.error is not None and not outcome.diverged:
                raise UserError(outcome.error)
        count, trials = len(self.seeds), []
        for place, number in enumerate(numbers):
            own = [
                outcome for outcome in outcomes[place * count : (place + 1) * count] if outcome is not None
            ]
            values = [0.0 if outcome.diverged else outcome.result["average_accuracy"] for outcome in own]
            seconds = sum(outcome.result["seconds"] for outcome in own if not outcome.diverged)
            diverged = any(outcome.diverged for outcome in own)
            trials.append(Trial(number, sum(values) / count, settings[number], seconds, diverged))
        return trials

    def _try(self, number: int) -> Trial:
        settings = self._settings(number)
        started, values, diverged = time.perf_counter(), [], False
        for seed in self.seeds:
            try:
                values.append(score(replace(self.configured(settings), seed=seed), self.tasks))
            except TrainingDiverged:
                values.append(0.0)
                diverged = True
        return Trial(number, sum(values) / len(values), settings, time.perf_counter() - started, diverged)

    def _proposal(self, number: int) -> dict[str, Any]:
        """What Optuna's tree-structured Parzen estimator proposes after the trials so far."""
        seed = seed_of("tune", self.seeds[0], number) % 2**32
        study = self._optuna.create_study(
            direction="maximize", sampler=self._optuna.samplers.TPESampler(seed=seed)
        )
        kinds = {name: self._distribution(space) for name, space in self.spaces.items()}
        for trial in self.trials:
            study.add_trial(
                self._optuna.trial.create_trial(params=trial.settings, distributions=kinds, value=trial.value)
            )
        asked = study.ask(kinds).params
        return {name: space.rounded(asked[name]) for name, space in self.spaces.items()}

    def _distribution(self, space: Space) -> Any:
        kinds = self._optuna.distributions
        if space.choices:
            return kinds.CategoricalDistribution(space.choices)
        kind = kinds.IntDistribution if space.whole else kinds.FloatDistribution
        return kind(space.low, space.high, log=space.log)

    def _defaults(self) -> dict[str, Any] | None:
        """What would be used without a search, if the space has it: the first trial."""
        given = {name: getattr(self.config, s.part).get(s.name) for name, s in self.spaces.items()}
        return given if all(s.holds(given[name]) for name, s in self.spaces.items()) else None

    # ---- the directory ---------------------------------------------------------------------------------

    def _read(self) -> None:
        path = self.out / "search.json"
        if not path.exists():
            return
        kept = read_json(path)
        try:
            request, self.trials = kept["request"], [Trial(**trial) for trial in kept["trials"]]
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}): choose another --out") from None
        require(
            request == self._request(),
            f"{self.out} holds a search with other options or spaces: choose another --out",
        )

    def _write(self) -> None:
        """search.json to go on from, trials.csv, and best.yaml for `manymodes run --config`."""
        kept = {"request": self._request(), "trials": [asdict(trial) for trial in self.trials]}
        write_json(self.out / "search.json", kept)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["trial", "validation_accuracy", *self.spaces, "seconds", "diverged"])
        for t in self.trials:
            row = [t.number, f"{t.value:.6f}", *t.settings.values(), f"{t.seconds:.2f}"]
            writer.writerow([*row, str(t.diverged).lower()])
        write_text(self.out / "trials.csv", table.getvalue())
        head = (
            f"# validation accuracy {self.best.value:.4f}, trial {self.best.number} of {len(self.trials)}, "
            f"seeds {','.join(map(str, self.seeds))}, over {' '.join(map(str, self.spaces.values()))}\n"
        )
        recipe = plain(self.configured(self.best.settings).as_dict())
        write_text(self.out / "best.yaml", head + yaml.safe_dump(recipe, sort_keys=False))

    def _request(self) -> Any:
        """What must be the same for a search to go on; how many trials may differ."""
        fixed = plain(self.config.as_dict())
        spaces = [str(space) for space in self.spaces.values()]
        return plain([fixed, spaces, self.seeds, self.tasks])


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError('a search needs Optuna: pip install "manymodes[tune]"') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _alone(out: Path) -> Iterator[None]:
    """One search at a time in a directory."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = claim(out / "lock")
    except BlockingIOError:
        raise UserError(f"another search is under way in {out}: wait, or choose another --out") from None
    except OSError as error:
        raise UserError(f"cannot write {out}: {reason(error)}") from None
    try:
        yield
    finally:
        os.close(descriptor)
