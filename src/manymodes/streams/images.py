"""Images: decoding to uint8, normalising and augmenting a whole batch where it lies."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from manymodes.errors import UserError, unknown
from manymodes.task import TensorData

# (mean, standard deviation) per channel of pixels scaled to [0, 1]
NORMALISE: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none": ((0.0,), (1.0,)),
    "half": ((0.5,), (0.5,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar100": ((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),  # of the 50,000 training images
}


class UnreadableImage(ValueError):
    """A file or bytes that no decoder takes; the text says which and why."""


class Normalise:
    """uint8 pixels (S, C, H, W) to floats with about zero mean and unit spread, on the pixels' device.

    >>> Normalise("none")(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).flatten().tolist()
    [0.0, 1.0]
    """

    def __init__(self, name: str) -> None:
        if name not in NORMALISE:
            raise unknown("normalise", name, NORMALISE)
        mean_C11, std_C11 = (torch.tensor(values).view(-1, 1, 1) for values in NORMALISE[name])
        self.name, self.scale, self.shift = name, 1 / (255 * std_C11), -mean_C11 / std_C11

    def __call__(self, raw: Tensor) -> Tensor:
        """(pixel / 255 - mean) / std, as one multiply and one add; one channel stays one channel."""
        if self.scale.device != raw.device:
            self.scale, self.shift = self.scale.to(raw.device), self.shift.to(raw.device)
        scale, shift = self.scale, self.shift
        if raw.shape[1] == 1 and len(scale) > 1:  # grey pictures under colour statistics: their average
            scale, shift = scale.mean(0, keepdim=True), shift.mean(0, keepdim=True)
        if raw.is_contiguous() or not raw.is_contiguous(memory_format=torch.channels_last):
            return raw.to(scale.dtype).mul_(scale).add_(shift)  # in place: the result is the one new tensor
        _, channels, _, width = raw.shape  # pixels one after the other: as long rows four times as fast
        scale_X, shift_X = (v.expand(channels, 1, 1).flatten().repeat(width) for v in (scale, shift))
        out_SHX = raw.permute(0, 2, 3, 1).flatten(2).to(scale.dtype).mul_(scale_X).add_(shift_X)
        return out_SHX.view(len(raw), -1, width, channels).permute(0, 3, 1, 2)


class CropFlip:
    """The usual augmentation of small images: pad by 4, crop at random, mirror every second one.

    Everything random comes from the generator that is given, so equal generators give equal batches.
    """

    def __init__(self, padding: int = 4, flip: bool = True) -> None:
        self.padding, self.flip = padding, flip

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Another rendition of every image; shape and type stay."""
        count, _, height, width = images.shape
        pad = self.padding
        shift_S2 = torch.randint(2 * pad + 1, (count, 2), generator=generator, device=generator.device)
        mirror_S = torch.rand(count, generator=generator, device=generator.device) < 0.5
        shift_S2, mirror_S = shift_S2.to(images.device), mirror_S.to(images.device)
        # all crops as a view (S, C, shifts, shifts, H, W), of which one per image is copied
        crops = functional.pad(images, (pad,) * 4).unfold(2, height, 1).unfold(3, width, 1)
        rows = torch.arange(count, device=images.device)
        out = crops[rows, :, shift_S2[:, 0], shift_S2[:, 1]]
        return torch.where(mirror_S[:, None, None, None], out.flip(-1), out) if self.flip else out


def image_data(
    images: Tensor, targets: Tensor, *, normalise: str, augment: bool, training: bool
) -> TensorData:
    """uint8 images in memory as data; only training data augments, and only if asked to."""
    return TensorData(
        images, targets, transform=Normalise(normalise), augment=CropFlip() if augment and training else None
    )


def select_from(
    images: NDArray[np.uint8], *, normalise: str, augment: bool, rows: NDArray[np.int64] | None = None
) -> Callable[[Tensor, Tensor, bool], TensorData]:
    """How a pool gets some of the images (or of their `rows`) as data; the array may lie on disk."""

    def select(index: Tensor, targets: Tensor, training: bool) -> TensorData:
        where = index.numpy() if rows is None else rows[index.numpy()]
        chosen = torch.from_numpy(images[where])
        return image_data(chosen, targets, normalise=normalise, augment=augment, training=training)

    return select


def decode(
    source: Path | bytes, *, size: int | None = None, channels: int = 3, upright: bool = True
) -> Tensor:
    """One image as uint8 (C, H, W); with `size`, its central square scaled to size x size.

    `upright` turns photographs the way their camera says they were taken. In memory the channels of a pixel
    lie side by side, as the decoder has them and as most networks like them.
    """
    image_module, orient = _pillow()
    mode = "RGB" if channels == 3 else "L"
    try:
        with image_module.open(_opened(source)) as image:
            if size is not None:
                image.draft(mode, (size, size))  # JPEG: decode no more than needed
            pixels = orient(image) if upright and _orientation(image) > 1 else image
            pixels = _eight_bit(image_module, pixels)
            pixels = pixels if pixels.mode == mode else pixels.convert(mode)
            if size is not None and pixels.size != (size, size):
                pixels = pixels.resize((size, size), image_module.Resampling.BILINEAR, box=_square(pixels))
            array_HWC = np.array(pixels).reshape(pixels.height, pixels.width, channels)
    except UserError:
        raise
    except Exception as error:  # decoders raise all sorts on broken bytes
        raise _unreadable(source, error) from None
    return torch.from_numpy(array_HWC).permute(2, 0, 1)


def decode_all(sources: Sequence[bytes], *, size: int | None = None) -> Tensor:
    """Encoded images of one size as uint8 (S, 3, H, W); decoders let go of the lock, so threads help."""
    first = decode(sources[0], size=size, upright=False)
    out = torch.empty((len(sources), *first.shape), dtype=torch.uint8)

    def fill(start: int) -> None:
        for row in range(start, min(start + 1000, len(sources))):
            out[row] = decode(sources[row], size=size, upright=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, len(sources), 1000)))
    return out


def measure(source: Path | bytes) -> tuple[int, int]:
    """Width and height of an image, from its header alone."""
    image_module, _ = _pillow()
    try:
        with image_module.open(_opened(source)) as image:
            width, height = image.size
            turned = _orientation(image) >= 5
    except Exception as error:
        raise _unreadable(source, error) from None
    return (height, width) if turned else (width, height)


def _opened(source: Path | bytes) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _unreadable(source: Path | bytes, error: Exception) -> UnreadableImage:
    name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    return UnreadableImage(f"{name}: {type(error).__name__}: {error}".splitlines()[0])


def _orientation(image: Any) -> int:
    """How the camera was held, by EXIF: 1 is upright, 5 to 8 lie on their side."""
    return int(image.getexif().get(0x0112, 1))


def _square(image: Any) -> tuple[float, float, float, float]:
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _eight_bit(image_module: Any, image: Any) -> Any:
    """16-bit grey levels keep their upper byte; Pillow's own conversion would clip them to white."""
    if image.mode.startswith("I;16"):
        return image_module.fromarray((np.asarray(image, dtype=np.uint16) >> 8).astype(np.uint8))
    return image


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise UserError('images need Pillow: pip install "manymodes[images]"') from None
    return Image, ImageOps.exif_transpose
