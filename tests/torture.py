"""`make torture` and `make fuzz`: every fault many times, and a table of what was tried, survived and lost.

A run survives a fault if it ends, or says in one line why not, and then goes on to the same bits as a run
that nothing happened to. Hostile files are survived if they are used or refused in one line. Data lost is
anything that was saved and is not there, or not the same, afterwards.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from tests.forked import TINY, Forked, Hook, differing, manymodes, outcome, sound
from tests.fuzz.kinds import KINDS, check
from tests.test_faults import backwards, cut, diverging, emptied, flipped, killed_at, limited, lost
from tests.test_resume import CASES, all_in_the_pool, killed_somewhere


@dataclass
class Tally:
    """How one fault was borne."""

    fault: str
    tried: int = 0
    survived: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str, lost: bool = False) -> None:
        self.tried += 1
        self.survived += not problem
        self.lost += lost
        if problem:
            self.problems.append(problem)
            print(f"  {self.fault}: {problem}", file=sys.stderr, flush=True)


Fault = Callable[["Runs", int], Tally]
Draw = Callable[[random.Random, Path], tuple[Any, ...]]  # a hook's arguments; the file is there until it ends


class Runs:
    """Runs of every strategy: as nothing happened, and as something did."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance, self._whole = folder, chance, {}

    def words(self, number: int, out: Path) -> tuple[str, ...]:
        strategy, options = CASES[number % len(CASES)]
        return ("run", "--strategy", strategy, *options, *TINY, "--out", str(out))

    def whole(self, number: int) -> dict[str, Any]:
        number %= len(CASES)
        if number not in self._whole:
            out = self.folder / f"whole-{number}"
            code, output = manymodes(self.folder, *self.words(number, out), hook=all_in_the_pool)
            assert code == 0, output
            self._whole[number] = outcome(next(out.iterdir()))
        return self._whole[number]

    def places(self, count: int) -> Iterator[tuple[int, Path, tuple[str, ...]]]:
        """A number, a folder of its own and the words of a run, `count` times."""
        for number in range(count):
            out = self.folder / "present"
            shutil.rmtree(out, ignore_errors=True)
            yield number, out, self.words(number, out)

    def after(self, tally: Tally, number: int, out: Path) -> None:
        """Look at what the fault left, go on, and compare."""
        runs = list(out.iterdir()) if out.exists() else []
        wrong = sound(runs[0]) if runs else []
        code, output = manymodes(self.folder, *self.words(number, out), hook=all_in_the_pool)
        if code != 0:
            tally.add(f"did not go on: {output[-300:]}", lost=True)
            return
        different = differing(outcome(next(out.iterdir())), self.whole(number))
        tally.add(
            "; ".join([*wrong, *(f"{name} differs" for name in different)]), lost=bool(wrong or different)
        )


def kills(runs: Runs, count: int) -> Tally:
    tally = Tally("SIGKILL at a random moment")
    for number, out, words in runs.places(count):
        for _ in range(runs.chance.randrange(1, 4)):
            killed_somewhere(runs.folder, out, words, runs.chance, all_in_the_pool)
        runs.after(tally, number, out)
    return tally


def kills_while_writing(runs: Runs, count: int) -> Tally:
    tally = Tally("SIGKILL in the middle of a write")
    for number, out, words in runs.places(count):
        manymodes(runs.folder, *words, hook=killed_at, arguments=(runs.chance.randrange(1, 300),))
        runs.after(tally, number, out)
    return tally


def signals(runs: Runs, count: int) -> Tally:
    tally = Tally("SIGTERM, SIGINT, once or twice")
    for number, out, words in runs.places(count):
        forked = Forked(runs.folder / "signalled.txt", *words, hook=all_in_the_pool)
        for _ in range(runs.chance.randrange(1, 3)):
            time.sleep(runs.chance.random() * 0.5)
            if forked.process.is_alive():
                forked.send(runs.chance.choice([signal.SIGTERM, signal.SIGINT]))
        code = forked.wait()
        if "Traceback" in forked.output or code not in (0, 130, -signal.SIGTERM, 1):
            tally.add(f"code {code}: {forked.output[-300:]}")
        else:
            runs.after(tally, number, out)
    return tally


def damages(runs: Runs, count: int) -> Tally:
    tally = Tally("a file of the run cut, emptied, deleted or a bit of it flipped")
    for number, out, words in runs.places(count):
        killed_somewhere(runs.folder, out, words, runs.chance, all_in_the_pool)
        checkpoints = sorted(out.glob("*/checkpoint-*.safetensors"))
        victims = [*checkpoints[-1:] * 2, *checkpoints, *out.glob("*/pool/*.safetensors")]
        victim, damage = runs.chance.choice(victims or [None]), runs.chance.choice(DAMAGES)
        if victim is not None:
            damage(victim)
        needed = victim in checkpoints[-1:] and damage is not Path.unlink  # whoever goes on must notice
        code, output = manymodes(runs.folder, *words, hook=all_in_the_pool)
        different = [output[-300:]] if code else differing(outcome(next(out.iterdir())), runs.whole(number))
        unnoticed = "damage was not noticed" if needed and "is damaged" not in output else ""
        tally.add("; ".join(different) or unnoticed, lost=bool(different))
    return tally


DAMAGES: tuple[Callable[[Path], object], ...] = (cut, emptied, flipped, Path.unlink)


def edits(runs: Runs, count: int) -> Tally:
    tally = Tally("config.yaml edited between two starts")
    for number, out, words in runs.places(count):
        killed_somewhere(runs.folder, out, words, runs.chance, all_in_the_pool)
        config = next(out.glob("*/config.yaml"))
        before = config.read_text()
        config.write_text(before.replace("epochs: 2", "epochs: 3"))
        code, output = manymodes(runs.folder, *words, hook=all_in_the_pool)
        config.write_text(before)
        done = (config.parent / "metrics.json").exists()
        if (code == 2 and "strategy.epochs is 3 there, 2 here" in output) or done:
            runs.after(tally, number, out)
        else:
            tally.add(f"code {code}: {output[-300:]}")
    return tally


def hooked(fault: str, hook: Hook, draw: Draw) -> Fault:
    """Something that goes wrong inside of the process: one line, and then the run goes on."""

    def attempts(runs: Runs, count: int) -> Tally:
        tally = Tally(fault)
        for number, out, words in runs.places(count):
            sign = runs.folder / "sign"
            sign.touch()
            code, output = manymodes(runs.folder, *words, hook=hook, arguments=draw(runs.chance, sign))
            sign.unlink()
            lines = [line for line in output.splitlines() if line.startswith("manymodes: error: ")]
            if "Traceback" in output or (code, len(lines)) not in ((0, 0), (2, 1)):
                tally.add(f"code {code}: {output[-300:]}")
            else:
                runs.after(tally, number, out)
        return tally

    return attempts


def two_threads(runs: Runs, count: int) -> Tally:
    tally = Tally("the same run again, two threads")
    for _, out, words in runs.places(count):
        found: list[dict[str, Any]] = []
        for _ in range(2):
            shutil.rmtree(out, ignore_errors=True)
            code, output = manymodes(runs.folder, *words, "--threads", "2", "--deterministic")
            found.append({"output": output} if code else outcome(next(out.iterdir())))
        tally.add("; ".join(differing(*found)))
    return tally


def files(name: str, folder: Path, cases: int, chance: random.Random) -> Tally:
    tally = Tally(f"hostile {name}")
    kind = KINDS[name](folder / name.replace(" ", "-"))

    @seed(chance.random())
    @settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(data=st.data())
    def attempt(data: st.DataObject) -> None:
        drawn = data.draw(kind.data())
        tally.tried += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(kind, drawn)
        tally.survived += 1

    try:
        attempt()
    except Exception as error:
        tally.problems.append(str(error))
        lines = traceback.format_exception(error, limit=-6)
        print("".join(line[:400] for line in lines), file=sys.stderr)
    return tally


HOOKED: tuple[tuple[str, Hook, Draw], ...] = (
    ("no room for a file", limited, lambda chance, sign: (chance.randrange(100, 30_000),)),
    (
        "a loss that is no number",
        diverging,
        lambda chance, sign: (chance.randrange(3), chance.randrange(1, 3), 0),
    ),
    ("a data file that disappears", lost, lambda chance, sign: (str(sign),)),
    ("a clock that goes backwards", backwards, lambda chance, sign: ()),
)


def show(tallies: list[Tally]) -> None:
    table = Table(header_style="bold")
    for title in ("fault", "tried", "survived", "data lost"):
        table.add_column(title, justify="left" if title == "fault" else "right")
    for tally in tallies:
        table.add_row(tally.fault, f"{tally.tried:,}", f"{tally.survived:,}", str(tally.lost))
    tried, survived = (sum(getattr(t, name) for t in tallies) for name in ("tried", "survived"))
    table.add_section()
    table.add_row("all", f"{tried:,}", f"{survived:,}", str(sum(t.lost for t in tallies)))
    Console(width=100).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=2000, help="files of each kind")
    parser.add_argument(
        "--kills", type=int, default=100, help="runs that are killed; other faults in proportion"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given_ = parser.parse_args()
    chance = random.Random(given_.seed)
    print(f"seed {given_.seed}", flush=True)
    some = max(1, given_.kills // 4) if given_.kills else 0
    faults: list[tuple[Fault, int]] = [
        (kills, given_.kills), (kills_while_writing, given_.kills), (signals, some), (damages, some),
        *((hooked(*fault), some) for fault in HOOKED), (edits, some), (two_threads, min(some, len(CASES))),
    ]  # fmt: skip
    tallies = []
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        runs = Runs(folder, chance)
        for fault, count in faults:
            if count:
                tallies.append(fault(runs, count))
                print(f"{tallies[-1].fault}: {tallies[-1].survived} of {tallies[-1].tried}", flush=True)
        for kind in KINDS if given_.cases else ():
            tallies.append(files(kind, folder, given_.cases, chance))
            print(f"{tallies[-1].fault}: {tallies[-1].survived} of {tallies[-1].tried}", flush=True)
    show(tallies)
    return int(any(t.survived < t.tried or t.problems for t in tallies))


if __name__ == "__main__":
    sys.exit(main())
