"""`manymodes export RUN FILE.onnx`: the joint predictor as one file, without this package.

Exit code 3: refused, because one network (--average) would lose more accuracy than --max-loss allows.
"""

from __future__ import annotations

from collections.abc import Sequence

from manymodes.commands.options import Parser
from manymodes.errors import require


def main(argv: Sequence[str]) -> int:
    """Export, check, say how large and how fast."""
    parser = Parser(
        prog="manymodes export",
        description="One ONNX or torch.export file that takes raw samples (uint8 images, or numbers) and "
        "gives probabilities and the modes' agreement; equal to predict to 1e-5. Exit code 3: refused by "
        "--max-loss, nothing written.",
        exit_on_error=False,
    )
    parser.add_argument("run", type=str, help="A run directory, or a learner.safetensors.")
    parser.add_argument("file", type=str, help="FILE.onnx or FILE.pt2.")
    parser.add_argument("--classes", type=str, default="", help="Only these labels, e.g. cat,dog.")
    parser.add_argument("--average", type=str | None, default=None,
                        help="One network instead of the modes: distil or mean.")  # fmt: skip
    parser.add_argument("--max_loss", type=float, default=0.01, help="Most accuracy that it may cost.")
    parser.add_argument("--data", type=str | None, default=None, help="Labelled samples to measure that on.")
    parser.add_argument("--model", type=str | None, default=None, help="Your own network: my.module:make.")
    parser.add_argument("--strategy", type=str | None, default=None, help="Your own: my.module:Class.")
    values = parser.parse_args([_plain(word) for word in argv])
    from manymodes.export import export
    from manymodes.using import open_learner, preparation_for

    learner, path = open_learner(
        values.run, model=values.model, strategy=values.strategy, device="cpu", precision="fp32"
    )
    if values.average is not None:
        require(values.data is not None, "--average needs --data: labelled samples to measure its loss on")
        from manymodes.condense import condense
        from manymodes.reading import samples_of

        samples = samples_of(values.data, preparation_for(learner, path), labelled=True)
        single = condense(learner, samples, values.average, values.max_loss)
        learner = single.learner
        print(
            f"One network: held-out accuracy {single.after:.3f}, the modes' {single.before:.3f} "
            f"({single.samples} samples)"
        )
    done = export(learner, values.file, classes=[n.strip() for n in values.classes.split(",") if n.strip()])
    how = "at once" if done.batched else "one after another"
    modes = "one network" if done.modes == 1 else f"{done.modes} modes, computed {how} within one graph"
    print(f"Written: {done.path.resolve()} ({done.megabytes:.2f} MB, {modes}, {len(done.classes)} classes)")
    print(f"Largest difference from predict: {done.difference:.1g}")
    print("Latency: " + ", ".join(f"{ms:.2f} ms for {n}" for n, ms in done.milliseconds.items()))
    return 0


def _plain(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word
