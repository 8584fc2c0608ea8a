"""`manymodes learn RUN DATA`: one more task for a finished run, as a version of its own.

Exit code 3: refused, because more would be forgotten than --max-forgetting allows; nothing was changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from manymodes.commands.options import Parser


def main(argv: Sequence[str]) -> int:
    """Learn, judge, switch."""
    parser = Parser(
        prog="manymodes learn",
        description="Teach a finished run its next task. The old version stays beside the new one "
        "(manymodes rollback). Exit code 3: refused by --max-forgetting, nothing changed.",
        exit_on_error=False,
    )
    parser.add_argument("run", type=str, help="A run directory, or a learner.safetensors.")
    parser.add_argument("data", type=str, help="A folder (a directory per class), npz (x, y), CSV (label).")
    parser.add_argument("--held_out", type=str | None, default=None, help="Labelled data of earlier tasks.")
    parser.add_argument("--max_forgetting", type=float | None, default=None,
                        help="Refuse if held-out accuracy falls by more, e.g. 0.02.")  # fmt: skip
    parser.add_argument("--name", type=str | None, default=None, help="The task's name.")
    parser.add_argument("--val", type=float, default=0.1, help="Share held out from training.")
    parser.add_argument("--epochs", type=int | None, default=None, help="Passes (default: as the run's).")
    parser.add_argument("--lr", type=float | None, default=None, help="Learning rate (default: the run's).")
    parser.add_argument("--batch_size", type=int | None, default=None, help="Samples in a step.")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda.")
    parser.add_argument("--model", type=str | None, default=None, help="Your own network: my.module:make.")
    parser.add_argument("--strategy", type=str | None, default=None, help="Your own: my.module:Class.")
    parser.add_argument("--skip_unreadable", type=bool, default=False, help="Leave out unreadable images.")
    values = parser.parse_args(_plain(argv))
    from manymodes.learning import learn_next
    from manymodes.strategies.base import Event

    def on_event(event: Event) -> None:
        if event.mode == event.modes - 1:
            print(f"{event.name}: epoch {event.epoch}/{event.epochs}, loss {event.loss:.4f}", file=sys.stderr)

    changed = {key: values[key] for key in ("epochs", "lr", "batch_size") if values[key] is not None}
    done = learn_next(
        values.run, values.data, name=values.name, val=values.val, held_out=values.held_out,
        max_forgetting=values.max_forgetting, skip_unreadable=values.skip_unreadable,
        on_event=on_event, model=values.model, strategy=values.strategy, device=values.device, **changed,
    )  # fmt: skip
    if done.before is not None:
        print(f"Held-out accuracy: {done.before:.3f} before, {done.after:.3f} after")
    new = f", new: {', '.join(done.new_classes)}" if done.new_classes else ""
    print(f"Learnt task {done.tasks}: {len(done.classes)} classes{new}")
    print(f"Version: {done.version.resolve()} (now in use; manymodes rollback {values.run} {done.tasks - 1})")
    return 0


def _plain(argv: Sequence[str]) -> list[str]:
    """Dashes and underscores alike; a flag alone is true."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        words.append(
            f"{name.replace('-', '_').replace('__', '--', 1)}{equals}{value}" if name[:2] == "--" else word
        )
    return ["--skip_unreadable=true" if word == "--skip_unreadable" else word for word in words]
