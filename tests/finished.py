"""A finished run on real digits written as images, and the folders that tests hand to it."""

import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from manymodes.cli import main

DIGITS = load_digits()


def pixels(label, count, start=0):
    """Real images of a digit, uint8 (count, 8, 8)."""
    rows = np.flatnonzero(DIGITS.target == label)[start : start + count]
    return (DIGITS.images[rows] * 15.9).astype(np.uint8)


def write(root, labels, count, start=0):
    """root/digit N/number.png for each of the labels."""
    for label in labels:
        folder = Path(root) / f"digit {label}"
        folder.mkdir(parents=True)
        for number, image in enumerate(pixels(label, count, start)):
            Image.fromarray(image).save(folder / f"{number:03d}.png")
    return Path(root)


def finished_run(root, scenario="instance", strategy="mota", epochs=6):
    """A run directory: two sites with the digits 0, 1 and 2 (or a class more at each, in class-IL)."""
    labels = {"instance": ([0, 1, 2], [0, 1, 2]), "class": ([0, 1], [2, 3]), "task": ([0, 1], [2, 3])}
    for site, digits in enumerate(labels[scenario]):
        write(root / "data" / f"site {site + 1}", digits, 60, start=60 * site)
    words = ["run", "--strategy", strategy, "--stream", "folder", "--stream.path", str(root / "data")]
    words += ["--stream.channels", "1", "--stream.scenario", scenario, "--epochs", str(epochs)]
    assert main([*words, "--out", str(root / "runs")]) == 0
    (run,) = (root / "runs").glob("*seed0")
    return run


def copy_of(run, tmp_path):
    """The run again, to be changed."""
    return Path(shutil.copytree(run, tmp_path / "run"))
