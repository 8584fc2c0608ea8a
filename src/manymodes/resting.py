"""Networks whose lower part rests: what it makes of an input never changes, so it is computed once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from manymodes.flat import FlatModel
from manymodes.task import Batch, Data, TensorData
from manymodes.train import over


class Resting(nn.Module):
    """logits = top(resting(x)): `resting` is frozen and gives features (S, F), `top` learns.

    It takes features as well as raw inputs, which have more than two dimensions. Where a learner goes over
    the same data more than once it asks `features_of` for them first: training then costs what `top` costs.
    """

    def __init__(
        self, resting: nn.Module, top: nn.Module, cache: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__()
        self.resting, self.top = resting.eval().requires_grad_(False), top
        self.cache = cache
        self._store: Path | None = None

    def train(self, mode: bool = True) -> Resting:
        """The resting part stays in eval mode."""
        super().train(mode)
        self.resting.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S, C) of raw inputs or of features (S, F)."""
        return self.top(x if x.dim() == 2 else self.rest(x))  # type: ignore[no-any-return]

    def store(self) -> FeatureStore | None:
        """Where features are kept between runs; asked for the first time once the weights are there."""
        if self.cache is not None and self._store is None:
            self._store = Path(self.cache).expanduser() / digest_of(self.resting)
        return None if self._store is None else opened(self._store)

    def rest(self, x: Tensor) -> Tensor:
        """The features (S, F) of raw inputs."""
        x = x.contiguous(memory_format=torch.channels_last)  # much faster on a processor
        return self.resting(x).flatten(1)  # type: ignore[no-any-return]


@torch.no_grad()
def features_of(model: FlatModel, data: Data) -> Data:
    """The data as the resting part sees it; the data itself where nothing rests or inputs are augmented."""
    net = model.module
    if not isinstance(net, Resting) or data.augments or isinstance(data, Features) or len(data) == 0:
        return data
    store = net.store()
    rest = net.rest if store is None else lambda inputs: store(inputs, net.rest)

    def compute(batch: Batch) -> Tensor:
        return batch.inputs if batch.inputs.dim() == 2 else rest(batch.inputs)

    features = over(data, compute, model.device)
    if store is not None:
        store.flush()
    return Features(features, data.targets)


class Features(TensorData):
    """Features and their targets."""


class FeatureStore:
    """Features on disk, by the content of the input and of the resting part: other runs find them there.

    A folder for each resting part, in it files of digests (S, 16) and features (S, F) in half precision.
    A file is written whole and never changed; two runs may write the same rows, which does no harm. A file
    that cannot be read counts as not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[bytes, Tensor] = {}
        self._new: dict[bytes, Tensor] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            self._read(path)

    def __call__(self, inputs: Tensor, rest: nn.Module | object) -> Tensor:
        """The features of a batch; `rest` computes those that are not known."""
        keys = [_digest(row) for row in inputs]
        missing = [i for i, key in enumerate(keys) if key not in self._rows]
        if missing:
            assert callable(rest)
            for i, row in zip(missing, rest(inputs[missing]).half().cpu(), strict=True):
                self._rows[keys[i]] = self._new[keys[i]] = row
        return torch.stack([self._rows[key] for key in keys]).to(inputs.device, torch.float32)

    def flush(self) -> None:
        """Write what is new, under a name that nobody else uses."""
        if not self._new:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        digests = torch.frombuffer(bytearray(b"".join(self._new)), dtype=torch.uint8).view(-1, 16)
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
        os.close(handle)
        save_file({"digests": digests, "features": torch.stack(list(self._new.values()))}, name)
        os.replace(name, Path(name).with_suffix(".safetensors"))
        self._new = {}

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, "pt") as file:
                digests, features = file.get_tensor("digests"), file.get_tensor("features")
        except (SafetensorError, OSError):
            return
        content = digests.numpy().tobytes()
        for i, row in enumerate(features):
            self._rows[content[16 * i : 16 * i + 16]] = row


@lru_cache(maxsize=2)  # reading a folder takes seconds
def opened(folder: Path) -> FeatureStore:
    """The store of a folder, the same one as long as this process needs it."""
    return FeatureStore(folder)


def digest_of(module: nn.Module) -> str:
    """A name for a module's weights."""
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:24]


def _digest(row: Tensor) -> bytes:
    return hashlib.blake2b(row.cpu().contiguous().numpy().tobytes(), digest_size=16).digest()
