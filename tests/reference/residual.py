"""Residual networks in eval mode, computed from a state_dict alone, one line per formula."""

import torch.nn.functional as F
from torch import Tensor


def logits(state: dict[str, Tensor], x: Tensor, *, head: str = "fc") -> Tensor:
    """The logits of a network whose layout is read off its names and shapes."""
    kernel = state["conv1.weight"].shape[-1]
    x = _normal(
        state, "bn1", F.conv2d(x, state["conv1.weight"], stride=2 if kernel == 7 else 1, padding=kernel // 2)
    )
    x = x.clamp(min=0)
    if kernel == 7:
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
    blocks = sorted({(int(n[5]), int(n.split(".")[1])) for n in state if n.startswith("layer")})
    for stage, number in blocks:
        x = _block(state, f"layer{stage}.{number}", x, stride=2 if stage > 1 and number == 0 else 1)
    return x.mean(dim=(2, 3)) @ state[f"{head}.weight"].T + state[f"{head}.bias"]


def _block(state: dict[str, Tensor], name: str, x: Tensor, stride: int) -> Tensor:
    convolutions = sorted(n for n in state if n.startswith(f"{name}.conv"))
    strided = 2 if len(convolutions) == 3 else 1  # a bottleneck halves in its 3x3 convolution
    out = x
    for number, key in enumerate(convolutions, start=1):
        weight = state[key]
        step = stride if number == strided else 1
        out = F.conv2d(out, weight, stride=step, padding=weight.shape[-1] // 2)
        out = _normal(state, f"{name}.bn{number}", out)
        if number < len(convolutions):
            out = out.clamp(min=0)
    return (out + _shortcut(state, name, x, stride, out.shape[1])).clamp(min=0)


def _shortcut(state: dict[str, Tensor], name: str, x: Tensor, stride: int, channels: int) -> Tensor:
    if f"{name}.downsample.0.weight" in state:
        x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=stride)
        return _normal(state, f"{name}.downsample.1", x)
    x = x[:, :, ::stride, ::stride]
    padded = x.new_zeros(x.shape[0], channels, *x.shape[2:])
    start = (channels - x.shape[1]) // 2
    padded[:, start : start + x.shape[1]] = x
    return padded


def _normal(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    def channel(part: str) -> Tensor:
        return state[f"{name}.{part}"].view(1, -1, 1, 1)

    scale = channel("weight") / (channel("running_var") + 1e-5).sqrt()
    return (x - channel("running_mean")) * scale + channel("bias")
