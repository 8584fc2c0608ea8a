"""From a folder of images to predictions, a new task, and back: the commands a person types.

Writes real handwritten digits as images of two "sites", learns them in turn, predicts unseen ones, learns two
new digits on top (refused if the old ones suffer too much), and rolls back. The strategy is er: where any
digit may come at any time (class-IL), methods that keep no image forget most of the old ones.
Run: python examples/predict.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from manymodes.cli import main

DIGITS = load_digits()


def write(root, labels, start, stop):
    """root/digit N/000.png and so on: images start to stop of each digit."""
    for label in labels:
        folder = root / f"digit {label}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in np.flatnonzero(DIGITS.target == label)[start:stop]:
            pixels = (DIGITS.images[number] * 15.9).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:04d}.png")
    return str(root)


def shell(*words):
    """One command, as typed."""
    print(f"\n$ manymodes {' '.join(words)}", flush=True)
    return main(list(words))


def show(folder):
    """The whole tour; returns the run directory."""
    for site, labels in (("site 1", [0, 1, 2]), ("site 2", [3, 4, 5])):
        write(folder / "data" / site, labels, 0, 120)
    unseen = write(folder / "unseen", [0, 1, 2, 3, 4, 5], 120, 150)
    new = write(folder / "new", [6, 7], 0, 120)
    shell("run", "--strategy", "er", "--stream", "folder", "--stream.path", str(folder / "data"),
          "--stream.channels", "1", "--stream.scenario", "class", "--out", str(folder / "runs"))  # fmt: skip
    (run,) = (folder / "runs").iterdir()
    assert shell("evaluate", str(run)) == 0
    assert shell("predict", str(run), unseen, "--out", str(folder / "predictions.csv")) == 0
    print("\n".join((folder / "predictions.csv").read_text(encoding="utf-8").splitlines()[:4]))
    code = shell("learn", str(run), new, "--held-out", unseen, "--max-forgetting", "0.0")
    assert code in (0, 3)
    print(f"exit code {code}: {'refused, nothing changed' if code else 'learnt'}")
    assert shell("learn", str(run), new, "--held-out", unseen) == 0
    assert shell("rollback", str(run), "2") == 0
    return run


if __name__ == "__main__":
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            show(Path(made))
