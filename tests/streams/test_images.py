"""Decoding, normalising and augmenting, each against a slow obvious version."""

import io
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from manymodes.errors import UserError
from manymodes.streams.images import NORMALISE, CropFlip, Normalise, UnreadableImage, decode, measure
from tests.reference.augment import crop_flip_by_loop, normalise_by_loop


def encode(pixels, kind="PNG", **options):
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


@given(
    st.integers(1, 5),
    st.sampled_from([1, 3]),
    st.integers(2, 7),
    st.integers(2, 7),
    st.integers(0, 3),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_crop_flip_equals_the_loop(count, channels, height, width, padding, flip):
    images = torch.randint(256, (count, channels, height, width), dtype=torch.uint8)
    fast = CropFlip(padding, flip)(images, torch.Generator().manual_seed(count))
    slow = crop_flip_by_loop(images, torch.Generator().manual_seed(count), padding, flip)
    assert fast.dtype == torch.uint8
    assert torch.equal(fast, slow)


def test_crop_flip_reaches_every_shift_and_leaves_its_input():
    image = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    image[0, 0, 4, 4] = 255
    batch = image.repeat(2000, 1, 1, 1)
    before = batch.clone()
    moved = CropFlip(4, flip=False)(batch, torch.Generator().manual_seed(0))
    assert torch.equal(batch, before)
    assert len({tuple(np.argwhere(m[0].numpy() == 255)[0]) for m in moved}) == 81
    assert not torch.rand(1).equal(torch.zeros(1))


def test_augmenting_draws_from_its_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    CropFlip()(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.Generator().manual_seed(1))
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("name", list(NORMALISE))
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalise_equals_the_loop(name, layout):
    images = torch.randint(256, (4, 3, 5, 6), dtype=torch.uint8).contiguous(memory_format=layout)
    mean, std = NORMALISE[name]
    found = Normalise(name)(images)
    assert torch.allclose(found, normalise_by_loop(images, mean, std), atol=1e-6)
    assert found.is_contiguous(memory_format=layout)


def test_grey_images_stay_grey():
    assert Normalise("imagenet")(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).shape == (2, 1, 4, 4)


def test_unknown_normalisation():
    with pytest.raises(UserError, match="did you mean 'imagenet'"):
        Normalise("imagnet")


PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_formats_are_exact(kind):
    image = decode(encode(PIXELS, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert image.dtype == torch.uint8
    assert np.array_equal(image.permute(1, 2, 0).numpy(), PIXELS)


def test_grey_and_colour():
    grey = PIXELS[..., 0]
    assert decode(encode(grey)).shape == (3, 6, 8)
    assert np.array_equal(decode(encode(grey), channels=1)[0].numpy(), grey)
    assert decode(encode(PIXELS), channels=1).shape == (1, 6, 8)


def test_sixteen_bits_are_scaled_not_clipped():
    deep = (np.arange(48, dtype=np.uint16).reshape(6, 8) * 1300).astype(np.uint16)
    assert np.array_equal(decode(encode(deep), channels=1)[0].numpy(), deep >> 8)


def test_size_takes_the_central_square():
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 200
    image = decode(encode(wide), size=5)
    assert image.shape == (3, 5, 5)
    assert (image[:, :, 1:-1] == 200).all()  # the filter looks a little beyond the edge
    assert (image > 150).all()


def test_photographs_are_turned_upright(tmp_path):
    picture = Image.fromarray(PIXELS)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture.save(tmp_path / "a.png", exif=exif)
    assert decode(tmp_path / "a.png").shape == (3, 8, 6)
    assert measure(tmp_path / "a.png") == (6, 8)
    assert np.array_equal(decode(tmp_path / "a.png").permute(1, 2, 0).numpy(), np.rot90(PIXELS, -1))


@pytest.mark.parametrize("damage", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\nrubbish", encode(PIXELS)[:60]])
def test_broken_bytes(damage):
    with pytest.raises(UnreadableImage) as error:
        decode(damage)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=80), st.integers(0, 300))
@settings(max_examples=200, deadline=None)
def test_damaged_files_decode_or_are_unreadable(noise, where):
    for kind in ("PNG", "JPEG", "GIF"):
        content = bytearray(encode(PIXELS, kind))
        content[where : where + len(noise)] = noise
        with suppress(UnreadableImage):
            assert decode(bytes(content)).dtype == torch.uint8
