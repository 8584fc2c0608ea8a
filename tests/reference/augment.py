"""Augmentation and normalisation, one image and one channel at a time."""

import torch


def crop_flip_by_loop(images, generator, padding, flip):
    """Pad with black, cut out at a random shift, mirror every second; draws as the fast version does."""
    count, channels, height, width = images.shape
    shifts = torch.randint(2 * padding + 1, (count, 2), generator=generator)
    mirror = torch.rand(count, generator=generator) < 0.5
    out = []
    for image, (down, right), mirrored in zip(images, shifts.tolist(), mirror.tolist(), strict=True):
        canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=images.dtype)
        canvas[:, padding : padding + height, padding : padding + width] = image
        crop = canvas[:, down : down + height, right : right + width]
        out.append(torch.stack([row.flip(-1) for row in crop]) if mirrored and flip else crop)
    return torch.stack(out)


def normalise_by_loop(images, mean, std):
    """(pixel / 255 - mean) / std, channel by channel."""
    out = images.double() / 255
    for channel in range(images.shape[1]):
        out[:, channel] -= mean[channel % len(mean)]
        out[:, channel] /= std[channel % len(std)]
    return out.float()
