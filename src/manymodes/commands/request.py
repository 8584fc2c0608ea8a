"""What `run` and `compare` are asked beside the configuration: seeds, where to, how many at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from manymodes.commands.complaints import Parser
from manymodes.errors import UserError, unknown
from manymodes.logs import parse_loggers
from manymodes.trajectory import WHEN

if TYPE_CHECKING:
    from manymodes.connection import Cluster

NAMES = ("out", "seeds", "seed", "jobs", "engine", "address", "gpus_per_run", "threads", "deterministic",
         "checkpoint_every", "record_trajectory", "log", "tune_loop", "resume", "profile",
         "print_config")  # fmt: skip
ENGINES = ("local", "ray")
FLAGS = ("print_config", "deterministic", "record_trajectory", "tune_loop")  # may stand alone: that is true
LOOPS = ("bf16", "compile")  # what --tune_loop may be allowed beside the layout
COMPARE = {
    "strategies": "Rows, e.g. finetune,ewc,mota:modes=4 (default: all).",
    "scenarios": "Each row in each of these, e.g. task,class,instance, or all (default: the stream's own).",
    "equal_capacity": "Networks so narrow that all modes together are no larger than the single one.",
}


@dataclass(frozen=True)
class Request:
    """What `run` and `compare` share beside the configuration."""

    out: Path
    seeds: list[int]
    jobs: int | None
    cluster: Cluster | None  # None: this machine
    checkpoint_every: float | None
    record_trajectory: str
    log: tuple[str, ...]
    tune_loop: tuple[str, ...] | None
    resume: Path | None
    print_config: bool


def add_arguments(parser: Parser, seeds: str) -> None:
    """The options, in the order in which --help shows them."""
    parser.add_argument("--out", type=str, default="runs", help="Folder for the run directories.")
    parser.add_argument("--seeds", type=str, default=seeds, help="Seeds, e.g. 0,1,2 or 0..4.")
    parser.add_argument("--seed", type=int | None, default=None, help="One seed.")
    parser.add_argument("--jobs", type=int | None, default=None, help="How many runs at the same time "
                        "(default: one; with Ray as many as there is room for).")  # fmt: skip
    parser.add_argument("--engine", type=str, default="local", help="local, or ray: runs as tasks of Ray.")
    parser.add_argument("--address", type=str | None, default=None, help="Ray cluster: HOST:PORT or auto "
                        "(default: RAY_ADDRESS, or one of its own on this machine).")  # fmt: skip
    parser.add_argument("--gpus_per_run", type=float | None, default=None, help="With Ray: 0.5 is two "
                        "runs on a GPU, 0 none (default: 1 where there are any).")  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, help="Threads per run (0: chosen by model size).")
    parser.add_argument("--deterministic", type=bool, default=False, help="The same bits on this machine.")
    parser.add_argument("--checkpoint_every", type=float | None, default=None,
                        help="Seconds between checkpoints (default: 0.5 % of the time).")  # fmt: skip
    parser.add_argument("--record_trajectory", type=str, default="auto",
                        help="Keep weights after each task: true, false, auto (below 64 MB).")  # fmt: skip
    parser.add_argument("--log", type=str, default="", help="Also log to csv, tensorboard, wandb, mlflow.")
    parser.add_argument("--tune_loop", type=str, default="false",
                        help="Measure the fastest memory layout (bf16,compile: these too).")  # fmt: skip
    parser.add_argument("--resume", type=str | None, default=None, help="Go on with this run directory.")
    parser.add_argument("--profile", type=str, default="default", help="default, or paper (Appendix A.1).")
    parser.add_argument("--print_config", type=bool, default=False, help="Print the configuration and stop.")


def add_compare_arguments(parser: Parser) -> None:
    """What only `compare` has, for its --help: it takes them out before options are parsed."""
    for name, about in COMPARE.items():
        parser.add_argument(f"--{name}", type=bool if name == "equal_capacity" else str, help=about)


def request_of(values: Namespace, one_seed: bool) -> Request:
    """The request; `one_seed` says that --seed was given last, not --seeds."""
    if values.threads < 0:
        raise UserError(f"threads must be a whole number from 1 (0: by model size), not {values.threads}")
    if values.checkpoint_every is not None and not values.checkpoint_every >= 0:
        raise UserError(f"checkpoint_every must be a number of seconds from 0, not {values.checkpoint_every}")
    if values.record_trajectory not in WHEN:
        raise unknown("record_trajectory", values.record_trajectory, WHEN)
    if values.jobs is not None and values.jobs < 1:
        raise UserError(f"jobs must be a whole number from 1, not {values.jobs}")
    return Request(
        Path(values.out),
        parse_seeds(str(values.seed) if one_seed and values.seed is not None else values.seeds),
        values.jobs,
        cluster_of(values.engine, values.address, values.gpus_per_run),
        values.checkpoint_every,
        values.record_trajectory,
        parse_loggers(values.log),
        parse_tune_loop(values.tune_loop),
        None if values.resume is None else Path(values.resume),
        values.print_config,
    )


def parse_tune_loop(text: str) -> tuple[str, ...] | None:
    """What --tune-loop may change beside the layout; None without it.

    >>> parse_tune_loop("false"), parse_tune_loop("true"), parse_tune_loop("bf16,compile")
    (None, (), ('bf16', 'compile'))
    """
    if text in ("true", "false"):
        return () if text == "true" else None
    names = tuple(filter(None, text.strip("[]").replace(" ", "").split(",")))
    for name in names:
        if name not in LOOPS:
            raise unknown("word in --tune_loop", name, ("true", "false", *LOOPS))
    return names


def cluster_of(engine: str, address: str | None, gpus_per_run: float | None) -> Cluster | None:
    """The Ray cluster that is asked for, or None for this machine.

    >>> cluster_of("ray", "auto", 0.5)
    Cluster(address='auto', gpus_per_run=0.5)
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if engine == "local":
        given = {"--address": address, "--gpus-per-run": gpus_per_run}
        found = next((option for option, value in given.items() if value is not None), None)
        if found:
            raise UserError(f"{found} is for Ray: add --engine ray, or leave it out")
        return None
    if gpus_per_run is not None and not (0 <= gpus_per_run <= 1 or gpus_per_run in range(2, 1025)):
        raise UserError(
            f"gpus_per_run must be a share from 0 to 1, or a whole number of GPUs, not {gpus_per_run:g}"
        )
    from manymodes.connection import Cluster

    return Cluster(address, gpus_per_run)


def parse_seeds(text: str) -> list[int]:
    """Seeds in the order given, each once.

    >>> parse_seeds("0,2,5..7")
    [0, 2, 5, 6, 7]
    """
    found: list[int] = []
    try:
        for piece in text.strip("[]").replace(" ", "").split(","):
            first, dots, last = piece.partition("..")
            found += range(int(first), int(last) + 1) if dots else [int(first)]
    except ValueError:
        raise UserError(f"seeds must be whole numbers like 0,1,2 or 0..4, not {text!r}") from None
    if not found:
        raise UserError(f"seeds {text!r} are none: a range goes up, e.g. 0..4")
    if min(found) < 0:
        raise UserError(f"seeds must be whole numbers from 0, not {text!r}")
    return list(dict.fromkeys(found))
