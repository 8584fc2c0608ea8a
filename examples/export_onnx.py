"""One ONNX file from a learner; then a folder of images classified by onnxruntime alone.

Run: python examples/export_onnx.py [FOLDER]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image
from sklearn.datasets import load_digits

import manymodes as mm
from manymodes.export import export
from manymodes.preparation import about


def classify(file, folder):
    """(path, label, probability, agreement of the modes) of each image; nothing of manymodes is used here."""
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    paths = sorted(folder.rglob("*.png"))
    images = np.stack([np.asarray(Image.open(path).convert("L"))[None] for path in paths])
    probabilities, agreement = session.run(None, {"input": images})
    best = probabilities.argmax(axis=1)
    return [
        (path, names[i], float(row[i]), float(share))
        for path, i, row, share in zip(paths, best, probabilities, agreement, strict=True)
    ]


def show(folder):
    """Learn from images, export, classify unseen ones; returns the share that is right."""
    digits = load_digits()
    pixels = (digits.images * 15.9).astype(np.uint8)
    train = np.arange(len(pixels)) % 5 != 0
    stream = mm.streams.arrays({"x": pixels[train], "y": digits.target[train]})
    learner = mm.MOTA(mm.models.mlp(64, outputs=10), modes=2, epochs=15, device="cpu")
    learner.about = about(stream)  # names and preparation, as `manymodes run` notes them
    for task in stream:
        learner.learn(task)
    done = export(learner, folder / "digits.onnx")
    print(f"{done.path}: {done.megabytes:.2f} MB, differs from predict by {done.difference:.1g}")
    print("milliseconds by batch size:", {n: round(ms, 3) for n, ms in done.milliseconds.items()})
    for number in np.flatnonzero(~train):
        path = folder / "unseen" / str(digits.target[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number]).save(path)
    found = classify(folder / "digits.onnx", folder / "unseen")
    for path, label, probability, agreement in found[:3]:
        print(f"{path.name}: {label} ({probability:.3f}, {agreement:.0%} of the modes agree)")
    right = float(np.mean([path.parent.name == label for path, label, *_ in found]))
    print(f"right: {right:.1%} of {len(found)}")
    return right


if __name__ == "__main__":
    if len(sys.argv) > 1:
        assert show(Path(sys.argv[1])) > 0.9
    else:
        with tempfile.TemporaryDirectory() as made:
            assert show(Path(made)) > 0.9
