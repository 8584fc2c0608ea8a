"""The command line: each command is a module in `commands/`, imported when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code.

    0 done, 1 some runs of several failed and the others are done, 2 a person's mistake, 130 interrupted.
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
        return int(module.main(words[1:]) or 0)
    except UserError as error:
        print(f"manymodes: error: {one_line(error, most=2000)}", file=sys.stderr)
        return error.code
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        print("manymodes: error: there is not enough memory: try a smaller model or batch", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"manymodes: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130


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
