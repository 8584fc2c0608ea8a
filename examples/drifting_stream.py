"""A stream without boundaries: what MOTA, EWC and fine-tuning make of batches that just arrive.

    python examples/drifting_stream.py                # electricity prices (fetched once, 16 MB) or digits
    python examples/drifting_stream.py digits         # handwritten digits; nothing is fetched
    python examples/drifting_stream.py my.csv         # your own: numbers, the label in the last column
    python examples/drifting_stream.py elec 0 1 2     # several seeds

Needs `pip install "manymodes[online]"`. Every batch is predicted before anything is learnt from it
("as it arrives"); every tenth batch is never learnt from, and predicted when the stream is over ("at the
end": what is still known of the whole stream).
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

import manymodes as mm
from manymodes.arriving import Arriving
from manymodes.streams.places import cache_dir

BATCH, TASK = 100, 1000
WHEEL = "scikit-multiflow==0.4.1"  # holds Elec2 (45,312 half hours of prices) and the NOAA weather set
KIND = "--only-binary=:all: --python-version 3.7 --implementation cp --abi cp37m --platform manylinux1_x86_64"


def fetch(name):
    """A CSV file of real drifting data out of an old wheel, or None where it cannot be had."""
    path = cache_dir() / "data" / "drift" / name
    if path.is_file():
        return path
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command = [*pip, *KIND.split(), "-d", folder, WHEEL]
        if subprocess.run(command, capture_output=True, timeout=120).returncode:
            return None
        (wheel,) = Path(folder).glob("*.whl")
        content = zipfile.ZipFile(wheel).read(f"skmultiflow/data/datasets/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def table(path, most=None):
    """(x, y) of a CSV file with a header; scaled by what its first task shows."""
    rows = np.genfromtxt(path, delimiter=",", skip_header=1, max_rows=most, dtype=np.float32)
    x, y = rows[:, :-1], rows[:, -1].astype(int)
    first = x[:TASK]
    return np.clip((x - first.mean(0)) / (first.std(0) + 1e-6), -5, 5), y


def digits():
    """Handwritten digits that are rotated, shifted, inverted and thickened as time goes by."""
    parts = [
        next(task.train.batches([torch.arange(len(task.train))])) for task in mm.streams.digits("instance")
    ]
    x, y = torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])
    return x.flatten(1).numpy(), y.numpy()


def follow(learner, x, y, detector="adwin"):
    """(accuracy as it arrives, accuracy at the end, tasks) of a learner on a stream."""
    arriving, right, kept_x, kept_y = Arriving(learner, detector, task_size=TASK), [], [], []
    for number, start in enumerate(range(0, len(x), BATCH)):
        batch = slice(start, start + BATCH)
        if number % 10 == 9:
            kept_x.append(x[batch])
            kept_y.append(y[batch])
            continue
        seen = arriving.observe(x[batch], y[batch])
        right += [] if seen.accuracy is None else [seen.accuracy]
    guess = learner.predict(np.concatenate(kept_x)).argmax(1).numpy()
    return float(np.mean(right)), float((guess == np.concatenate(kept_y)).mean()), learner.tasks_learnt


def learners(inputs, outputs, seed=0):
    """Fresh learners of the same size of network, by name."""

    def net(hidden):
        torch.manual_seed(seed)
        return mm.models.mlp(inputs, (hidden, hidden), outputs=outputs)

    training = {"epochs": 10, "seed": seed}
    return {
        "finetune": mm.Finetune(net(92), **training),
        "EWC": mm.EWC(net(92), **training),
        "MOTA": mm.MOTA(net(64), modes=2, **training),
    }


class Never:
    """A detector that notices nothing: the first task is all that is learnt."""

    drift_detected = False

    def update(self, x):
        pass

    def clone(self):
        return self


def results(x, y, seed):
    """What each learner makes of the stream; the last learns its first task and no more."""
    outputs = int(y.max()) + 1
    found = {name: follow(it, x, y) for name, it in learners(x.shape[1], outputs, seed).items()}
    only = learners(x.shape[1], outputs, seed)["finetune"]
    return found | {"first task only": follow(only, x, y, Never())}


def main(source="elec", *seeds):
    """Print the table: means over the seeds, and how far the seeds are from them at most."""
    path = fetch("elec.csv") if source == "elec" else None if source == "digits" else source
    x, y = digits() if path is None else table(path)
    print(f"{path or 'digits'}: {len(x)} samples\n")
    runs = [results(x, y, int(seed)) for seed in seeds or (0,)]
    print(f"{'':24}{'as it arrives':>16}{'at the end':>16}{'tasks':>10}")
    for name in runs[0]:
        now, end, tasks = np.array([run[name] for run in runs]).T
        cells = [f"{100 * v.mean():.1f} ± {100 * abs(v - v.mean()).max():.1f}" for v in (now, end)]
        print(f"{name:24}{cells[0]:>16}{cells[1]:>16}{tasks.mean():>10.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
