"""One class per kind of file: a good one, what is done to it, and what a person would do with the result."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from PIL import Image

import manymodes as mm
from manymodes import store, streams
from manymodes.commands import runs
from manymodes.commands.compare import plan
from manymodes.commands.options import parse
from manymodes.commands.resume import resumed
from manymodes.config import Config
from manymodes.models.pretrained import load_weights
from manymodes.sweep import execute
from tests.fuzz.edits import edited

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats() | st.text(max_size=10)
    | st.sampled_from(["mota", "ewc", "digits", "os:system", "this:s", "../..", "auto", "0:50", "1e-3", ""])
    | st.sampled_from([10**30, -1, 0, "!!python/name:os.system", "*x", "[", "{", "nan", ".inf", "2024-13-01"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=6,
)


class Canary:
    """Unpickling this touches a file: it must never be there."""

    path = "/tmp/manymodes-canary-" + str(id(object()))

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))

    @classmethod
    def alive(cls) -> bool:
        return not Path(cls.path).exists()


class Kind:
    """Files of one kind. `data` draws one, `use` does everything with it that could be done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def data(self) -> st.SearchStrategy[Any]:
        raise NotImplementedError

    def use(self, data: Any) -> None:
        raise NotImplementedError

    def write(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


class Configs(Kind):
    """--config FILE, and the config.yaml of a run directory."""

    good: dict[str, Any] = {
        "strategy": {"name": "mota", "modes": 2, "lr": 0.01, "epochs": 3},
        "stream": {"name": "digits", "tasks": 2, "scenario": "task", "limit": 8},
        "model": {"name": "mlp", "hidden": [8]},
        "seeds": "0,1",
        "jobs": 1,
    }

    def data(self) -> st.SearchStrategy[bytes]:
        names = st.sampled_from(["modes", "lr", "epochs", "name", "tasks", "hidden", "strength", "limit"])
        part = st.dictionaries(names | st.text(max_size=6), VALUES, max_size=3)
        parts = st.fixed_dictionaries(
            {}, optional=dict.fromkeys(("strategy", "stream", "model"), part | VALUES)
        )
        others = st.sampled_from(["seed", "seeds", "jobs", "out", "log", "config", "threads", "profile"])
        rest = st.dictionaries(others | st.text(max_size=6), VALUES, max_size=2)
        built = st.tuples(parts, rest).map(lambda pair: self.good | pair[0] | pair[1])
        as_yaml = st.one_of(built, VALUES).map(lambda value: yaml.dump(value).encode())
        return edited(self.text()) | as_yaml | as_yaml.flatmap(lambda d: edited(d, 2))

    def text(self) -> bytes:
        """A good file."""
        return yaml.safe_dump(self.good).encode()

    def use(self, data: bytes) -> None:
        path = self.write("config.yaml", data)
        for attempt in (
            lambda: parse(["--config", str(path)]),
            lambda: plan(["--strategies", "ewc,finetune", f"--config={path}"]),
            lambda: resumed(["--resume", str(self.folder)]),
            lambda: runs.show(runs.RunFiles(self.folder)),
        ):
            self.each(attempt)

    def each(self, attempt: Any) -> None:
        try:
            attempt()
        except mm.UserError as error:
            check_line(error)


class Manifests(Kind):
    """A CSV of images of one's own."""

    good = b"path,label,task,split\n" + b"".join(
        f"i{n}.png,{'ab'[n % 2]},{n // 4},{'train' if n % 4 < 2 else 'test'}\n".encode() for n in range(8)
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for n in range(8):
            Image.new("RGB", (4, 4), (n * 20, 0, 0)).save(folder / f"i{n}.png")

    def data(self) -> st.SearchStrategy[bytes]:
        cell = st.text(max_size=6) | st.sampled_from(
            ["i0.png", "a", "train", "../i1.png", "/etc/passwd", '"', ""]
        )
        row = st.lists(cell, min_size=1, max_size=5).map(",".join)
        table = st.lists(row, max_size=6).map(lambda rows: "\n".join(["path,label", *rows]))
        return edited(self.good) | table.map(lambda text: text.encode("utf-8", "surrogatepass"))

    def use(self, data: bytes) -> None:
        stream = streams.folder(self.write("list.csv", data))
        for task in stream:
            list(task.train.batches([torch.arange(len(task.train))]))


class Arrays(Kind):
    """An npz of one's own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.good = self.npz(x=np.arange(24, dtype=np.float32).reshape(12, 2), y=np.arange(12) % 2)

    @staticmethod
    def npz(**arrays: Any) -> bytes:
        file = io.BytesIO()
        np.savez(file, **arrays)
        return file.getvalue()

    def data(self) -> st.SearchStrategy[bytes]:
        types = st.sampled_from(["f4", "f8", "i8", "u1", "?", "U3", "S2", "c8", "M8[s]", "O", "f2", "V3"])
        shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
        array = st.tuples(types, shapes, st.integers(0, 9)).map(_array)
        named = st.fixed_dictionaries({"x": array, "y": array}, optional={"task": array, "split": array})
        evil = st.sampled_from(["x", "y", "task"]).map(
            lambda name: self.npz(**{"x": np.zeros((4, 2)), "y": np.arange(4) % 2}
                                  | {name: np.array([Canary()] * 4, dtype=object)})
        )  # fmt: skip
        raw = st.binary(max_size=60).map(
            lambda data: _zipped({"x.npy": data, "y.npy": pickle.dumps(Canary())})
        )
        return edited(self.good) | named.map(lambda arrays: self.npz(**arrays)) | evil | raw

    def use(self, data: bytes) -> None:
        for task in streams.arrays(self.write("a.npz", data)):
            list(task.train.batches([torch.arange(len(task.train))]))


def _array(what: tuple[str, tuple[int, ...], int]) -> Any:
    dtype, shape, seed = what
    numbers = np.random.default_rng(seed).integers(0, 4, shape)
    if dtype == "O":
        return numbers.astype(object)
    if dtype.startswith("V"):
        return np.zeros(shape, dtype)
    return numbers.astype("i8").astype(dtype)


def _zipped(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


class Learners(Kind):
    """A saved learner, and weights from anywhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        learner = mm.MOTA(mm.models.mlp(4, (3,), outputs=2), epochs=1, batch_size=8)
        x, y = torch.randn(20, 4), torch.arange(20) % 2
        for _ in range(2):
            learner.learn(x, y, on_epoch=lambda one: one.save(folder / "good.safetensors"))
        self.good = (folder / "good.safetensors").read_bytes()
        self.state, self.meta = store.load_state(folder / "good.safetensors")

    def data(self) -> st.SearchStrategy[bytes]:
        """Bytes that were edited, and states that were edited under a right checksum."""
        return edited(self.good) | st.tuples(_altered(self.state), _altered(self.meta)).map(self.packed)

    def packed(self, pair: tuple[Any, Any]) -> bytes:
        state, meta = pair
        tensors, plain, _ = store.flatten(state)
        body = json.dumps({"state": plain, "meta": meta, "files": []})
        store._write(self.folder / "packed.safetensors", tensors, body)
        return (self.folder / "packed.safetensors").read_bytes()

    def use(self, data: bytes) -> None:
        path = self.write("x.safetensors", data)
        try:
            load_weights(mm.models.mlp(4, (3,), outputs=2), path)
        except mm.UserError as error:
            check_line(error)
        mm.load(path).predict(torch.randn(3, 4))


@st.composite
def _altered(draw: st.DrawFn, value: Any) -> Any:
    """A nested value with something in it replaced, left out or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)) > 0:
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 4)) == 0:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: draw(_altered(value[key]))}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(_altered(value[at])), *value[at + 1 :]]
    if isinstance(value, torch.Tensor) and draw(st.booleans()):
        spoilt = torch.full_like(value, torch.nan) if value.is_floating_point() else value
        others = [value.double(), value[:0], value.flatten(), value.to(torch.int8), value.new_zeros(3, 1, 2)]
        return draw(st.sampled_from([spoilt, *others]))
    return draw(VALUES.filter(lambda v: not isinstance(v, int) or isinstance(v, bool) or abs(v) < 10**6))


class Images(Kind):
    """Image files in a directory per class."""

    formats = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.goods = []
        picture = Image.effect_noise((16, 16), 50).convert("RGB")
        for name in self.formats:
            file = io.BytesIO()
            picture.save(file, name)
            self.goods.append((name.lower().replace("jpeg", "jpg"), file.getvalue()))
        for label in "ab":
            (folder / label).mkdir(exist_ok=True)
            for n in range(3):
                picture.save(folder / label / f"{n}.png")

    def data(self) -> st.SearchStrategy[tuple[str, bytes]]:
        return st.sampled_from(self.goods).flatmap(lambda good: st.tuples(st.just(good[0]), edited(good[1])))

    def use(self, data: tuple[str, bytes]) -> None:
        path = self.folder / "a" / f"x.{data[0]}"
        path.write_bytes(data[1])
        try:
            for skip in (True, False):
                stream = streams.folder(self.folder, skip_unreadable=skip, size=16, workers=0)
                for task in stream:
                    list(task.train.batches([torch.arange(len(task.train))]))
        finally:
            path.unlink()


class Runs(Kind):
    """A run directory that somebody was at, with which a run goes on."""

    config = Config(
        {"name": "mota", "epochs": 1, "batch_size": 8},
        {"name": "digits", "tasks": 2, "limit": 8, "scenario": "task"},
        {"name": "mlp", "hidden": [4]},
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from manymodes.interrupts import Interrupted, Stop

        class Later:
            """Stop after task 1 and the first epoch of task 2."""

            looks = 0

            def is_set(self) -> bool:
                self.looks += 1
                return self.looks > 2

        self.whole = execute(self.config, folder / "whole")
        with suppress(Interrupted):
            execute(self.config, folder / "begun", checkpoint_every=0, stop=Stop(Later()))
        self.files = {
            str(path.relative_to(folder / "begun")): path.read_bytes()
            for path in sorted((folder / "begun").rglob("*")) if path.is_file() and path.name != ".lock"
        }  # fmt: skip
        assert sum("checkpoint" in name for name in self.files) == 2, list(self.files)

    def data(self) -> st.SearchStrategy[dict[str, bytes]]:
        """Some of the files, edited or missing."""

        def broken(names: list[str]) -> st.SearchStrategy[dict[str, bytes | None]]:
            return st.fixed_dictionaries({n: edited(self.files[n], 3) | st.none() for n in names})

        return st.lists(st.sampled_from(sorted(self.files)), min_size=1, max_size=3, unique=True).flatmap(
            broken
        )

    def use(self, data: dict[str, bytes | None]) -> None:
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        for name, content in (self.files | data).items():
            if content is not None:
                (run / name).parent.mkdir(parents=True, exist_ok=True)
                (run / name).write_bytes(content)
        with redirect_stdout(io.StringIO()):
            runs.main([str(self.folder)])
            result = execute(self.config, run)
        assert result["accuracy"] == self.whole["accuracy"]
        assert (run / "learner.safetensors").read_bytes() == (
            self.folder / "whole" / "learner.safetensors"
        ).read_bytes()


KINDS: dict[str, type[Kind]] = {
    "configurations": Configs,
    "manifests": Manifests,
    "npz files": Arrays,
    "saved learners": Learners,
    "images": Images,
    "run directories": Runs,
}


def check_line(error: mm.UserError) -> None:
    """One clear line of bearable length."""
    text = str(error)
    assert text.strip()
    assert "\n" not in text, repr(text)
    assert len(text) < 2000, repr(text)


def check(kind: Kind, data: Any) -> bool:
    """Success, or one clear line; anything else is a failure. True for success."""
    good = {p: p.read_bytes() for p in kind.folder.glob("good*")}
    try:
        kind.use(data)
        fine = True
    except mm.UserError as error:
        check_line(error)
        fine = False
    assert Canary.alive()
    assert all(path.read_bytes() == content for path, content in good.items())
    return fine
