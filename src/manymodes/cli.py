"""The command line: each command is a module in `commands/`, imported when it is asked for."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout

from manymodes.errors import UserError, one_line, unknown
from manymodes.version import __version__

COMMANDS: dict[str, str] = {
    "run": "learn a stream with one strategy, over one or more seeds",
    "compare": "several strategies side by side on the same stream, in one table",
    "reproduce": "a table or figure of the paper, our numbers beside the published ones",
    "list": "what there is: strategies, streams, models, recipes",
    "data": "fetch or check the data of a stream",
    "tune": "search hyper-parameters on validation data",
    "runs": "the runs in a folder: status, progress, accuracy",
    "landscape": "the loss around the final weights of finished runs, for the report",
    "report": "tables, figures and an interactive page from run directories",
    "predict": "labels for images, an npz file or a CSV, by a finished run",
    "evaluate": "accuracy, NLL and calibration of a finished run on a stream's tasks",
    "learn": "one more task for a finished run, from your data; can refuse to forget",
    "rollback": "an earlier version of a run's learner back in use",
    "export": "a finished run as one ONNX or torch.export file",
}
# Those that several processes started by torchrun do together.
TOGETHER = ("run", "compare", "reproduce")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0 done, 1 some runs of several failed and the others are done (or `| head` has read enough),
    2 a person's mistake, 130 interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version"):
        print(f"manymodes {__version__}")
        return 0
    if "" not in sys.path:
        sys.path.insert(0, "")  # so that my_file:MyLearner is found in the current folder
    try:
        if words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS, "See manymodes --help.")
        module = importlib.import_module(f"manymodes.commands.{words[0]}")
        with _processes(words[0]), _told():
            code = int(module.main(words[1:]) or 0)
            sys.stdout.flush()  # here, where it can be answered that nobody reads it
            return code
    except UserError as error:
        _complain(f"{_which()}error: {one_line(error, most=2000)}")
        return error.code
    except BrokenPipeError:
        if not _unread():
            raise
        return 1
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        _complain("error: there is not enough memory: try a smaller model or batch")
        return 2
    except KeyboardInterrupt as error:
        if not _which():  # all are interrupted together
            _complain(str(error) or "interrupted")
        return 130


@contextmanager
def _processes(command: str) -> Iterator[None]:
    """Several processes that torchrun started work as one, and only the first of them prints."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        yield
        return
    if command not in TOGETHER:
        raise UserError(f"manymodes {command} is for one process: start it without torchrun")
    from manymodes import distributed

    with distributed.joined(), open(os.devnull, "w") as nowhere:
        redirected = nullcontext() if distributed.first() else redirect_stdout(nowhere)
        with redirected:
            yield


def _complain(text: str) -> None:
    """Say what is wrong; where the words go to a full disk, the exit code still tells."""
    try:
        print(f"manymodes: {text}", file=sys.stderr)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # what is left in the old one would fail again


def _unread() -> bool:
    """Whether it is our output that nobody reads any more; what is left of it is dropped."""
    try:
        print(flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@contextmanager
def _told() -> Iterator[None]:
    """What is logged (which weights were loaded, and which not) and warned of is printed in plain lines."""
    logger, handler = logging.getLogger("manymodes"), logging.StreamHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda text, *where, **more: _complain(f"warning: {text}")
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _which() -> str:
    """Which of several processes is speaking."""
    rank = os.environ.get("RANK", "0")
    return f"process {rank}: " if rank.isdecimal() and int(rank) > 0 else ""


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()]
    return "\n".join(
        [
            "usage: manymodes COMMAND [options]",
            "",
            "Continual learning without keeping old data: MOTA and the methods it is compared with.",
            "",
            "commands:",
            *lines,
            "",
            "manymodes COMMAND --help shows a command's options.",
            "Try: manymodes compare --strategies finetune,ewc,mota --stream digits --seeds 0,1,2",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
