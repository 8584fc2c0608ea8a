"""A learner as one file that runs without this package: ONNX, or torch.export's pt2."""

from __future__ import annotations

import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manymodes import files
from manymodes.errors import UserError, require
from manymodes.predictor import JointPredictor, batchable
from manymodes.preparation import DTYPES, Preparation
from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import name_of
from manymodes.using import as_input, names_of, outputs_of, preparation_for
from manymodes.version import __version__

SUFFIXES = (".onnx", ".pt2")
TOLERANCE = 1e-5
SIZES = (1, 4, 7)  # batches on which the file is compared with `predict`
ONNX_BYTES = 2**31 - 2**20  # a protobuf file cannot be larger
INSTALL = 'pip install "manymodes[export]"'

Run = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Exported:
    """A written file: its size, what it differs from `predict` at most, milliseconds by batch size."""

    path: Path
    megabytes: float
    difference: float
    milliseconds: dict[int, float]
    batched: bool
    modes: int
    classes: list[str]


def export(learner: Strategy, path: str | Path, *, classes: Sequence[str] = ()) -> Exported:
    """Write the joint predictor of a learner, checked against `predict` before it gets its name.

    The file takes raw samples ("input": uint8 images or the numbers as they were, any number of them) and
    gives "probabilities" (S, K) and "agreement" (S,). Its metadata has the K class names in their order.

    Args:
        learner: A learner on the CPU in fp32.
        path: FILE.onnx or FILE.pt2.
        classes: Names of the classes to tell apart; those learnt so far unless given.
    """
    path = Path(path)
    require(path.suffix in SUFFIXES, f"export writes {' or '.join('FILE' + s for s in SUFFIXES)}, not {path}")
    require(
        learner.model.device.type == "cpu" and learner.precision == "fp32",
        "export needs the learner on the CPU in fp32: load(path, device='cpu', precision='fp32')",
    )
    preparation = preparation_for(learner)
    valid = learner.valid_for(
        as_input(learner, _raw(preparation, 1, 0)),
        outputs_of(learner, classes) if classes else None,
    )
    names = [names_of(learner)[c] for c in valid.classes]
    about = _metadata(learner, preparation, names)
    program, batched = _program(learner, preparation, valid.classes)
    write = _write_onnx if path.suffix == ".onnx" else _write_pt2
    found: dict[str, Any] = {}

    def put(temporary: Path) -> None:
        run = write(program, about, temporary)
        found["difference"] = _compare(run, learner, preparation, valid.classes)
        found["milliseconds"] = {size: _latency(run, _raw(preparation, size, size)) for size in (1, 32)}

    files.write_atomically(path, put)
    megabytes = path.stat().st_size / 1e6
    return Exported(path, megabytes, batched=batched, modes=len(learner.modes), classes=names, **found)


def _metadata(learner: Strategy, preparation: Preparation, names: list[str]) -> dict[str, str]:
    return {
        "class_names": json.dumps(names, ensure_ascii=False),
        "input": json.dumps(preparation.as_dict()),
        "strategy": name_of(type(learner)),
        "modes": str(len(learner.modes)),
        "tasks_learnt": str(learner.tasks_learnt),
        "manymodes": __version__,
    }


def _program(
    learner: Strategy, preparation: Preparation, classes: Sequence[int]
) -> tuple[torch.export.ExportedProgram, bool]:
    """The graph with a free number of samples; modes at once where that can be exported."""
    example = _raw(preparation, 4, 0)
    failure = ""
    for batched in (True, False):
        if batched and not batchable(learner.model.module):
            continue
        module = JointPredictor(learner, preparation, classes, batched=batched).eval()
        try:
            with _quiet(), torch.no_grad():
                samples = torch.export.Dim("samples", min=1)
                return torch.export.export(module, (example,), dynamic_shapes=({0: samples},)), batched
        except Exception as error:  # torch.export raises all sorts on what it cannot trace
            failure = " ".join(str(error).split())[:200]
    raise UserError(f"this network cannot be exported with a free number of samples: {failure}")


def _write_onnx(program: torch.export.ExportedProgram, about: dict[str, str], path: Path) -> Run:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise UserError(f"ONNX needs {error.name}: {INSTALL}") from None
    size = sum(t.numel() * t.element_size() for t in program.state_dict.values())
    require(size < ONNX_BYTES, f"{size / 1e9:.1f} GB are too large for one ONNX file: export FILE.pt2")
    try:
        with _quiet():
            converted = torch.onnx.export(
                program, dynamo=True, verbose=False,
                input_names=["input"], output_names=["probabilities", "agreement"],
            )  # fmt: skip
    except Exception as error:
        raise UserError(f"this network has no ONNX form: {' '.join(str(error).split())[:200]}") from None
    assert converted is not None
    model = converted.model_proto
    for key, value in about.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "samples"
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(raw: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, agreement = session.run(None, {"input": raw.numpy()})
        return torch.from_numpy(probabilities), torch.from_numpy(agreement)

    return run


def _write_pt2(program: torch.export.ExportedProgram, about: dict[str, str], path: Path) -> Run:
    with path.open("wb") as file, _quiet():
        torch.export.save(program, file, extra_files={"manymodes.json": json.dumps(about)})
    with path.open("rb") as written, _quiet():
        module = torch.export.load(written).module()

    def run(raw: Tensor) -> tuple[Tensor, Tensor]:
        probabilities, agreement = module(raw)
        return probabilities, agreement

    return run


@torch.no_grad()
def _compare(run: Run, learner: Strategy, preparation: Preparation, classes: Sequence[int]) -> float:
    """The largest difference from `predict`, over several batch sizes."""
    worst = 0.0
    for size in SIZES:
        raw = _raw(preparation, size, size)
        expected = learner.predict(as_input(learner, raw), classes=classes)[:, list(classes)]
        worst = max(worst, float((run(raw)[0] - expected).abs().max()))
    require(
        worst <= TOLERANCE,
        f"the exported graph differs from predict by {worst:.2g}, more than {TOLERANCE:g}: not written",
    )
    return worst


def _raw(preparation: Preparation, count: int, seed: int) -> Tensor:
    """Random samples in the raw type."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, *preparation.shape)
    if preparation.dtype == "float32":
        return torch.randn(shape, generator=generator)
    high = (
        256 if preparation.dtype == "uint8" else 2
    )  # of numbers of words, only the first are known to exist
    return torch.randint(0, high, shape, generator=generator).to(DTYPES[preparation.dtype])


@torch.no_grad()
def _latency(run: Run, raw: Tensor, most: int = 20, seconds: float = 1.0) -> float:
    """Median milliseconds of a call."""
    run(raw)
    times: list[float] = []
    while len(times) < most and sum(times) < seconds:
        started = time.perf_counter()
        run(raw)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' remarks on packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
