"""A learner as a model of the Hugging Face hub: saved with a card of its run, loaded, taught more.

Run: python examples/hub.py [FOLDER]                   everything stays on this machine
     python examples/hub.py FOLDER OWNER/NAME          uploads it too (log in first)

Needs `pip install "manymodes[hub]"`.
"""

import sys
import tempfile
from pathlib import Path

import torch

import manymodes as mm
from manymodes.cli import main


def show(folder, name=None):
    """Run, save, load, go on; returns the model's folder."""
    words = ["run", "--strategy", "mota", "--stream", "digits", "--epochs", "5"]
    assert main([*words, "--out", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").iterdir()
    learner = mm.load(run / "learner.safetensors")
    model = folder / "mota-digits"
    learner.save_pretrained(model, run=run)  # weights, configuration, and a card with the run's numbers
    print("\n".join((model / "README.md").read_text(encoding="utf-8").splitlines()[:30]))
    print("files:", ", ".join(sorted(path.name for path in model.iterdir())))

    same = mm.Strategy.from_pretrained(model)  # or from_pretrained("OWNER/NAME"); no code of it is run
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(same.predict(x), learner.predict(x))
    same.learn(mm.streams.digits()[0])  # it goes on where it stopped
    print(f"loaded, and has learnt {same.tasks_learnt} tasks now")
    if name is not None:
        same.push_to_hub(name)
    return model


if __name__ == "__main__":
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]), *sys.argv[2:3])
    else:
        with tempfile.TemporaryDirectory() as made:
            show(Path(made))
