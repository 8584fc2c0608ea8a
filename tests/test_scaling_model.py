"""The model of cost: what is counted, its limits, and that the fit finds what it was made from."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import scaling_model as model


@pytest.fixture(scope="module")
def network():
    return model.counted("resnet18", 32)


def test_what_is_counted_is_what_is_known(network):
    assert network.parameters == 11_181_642
    assert network.norms == 20
    # torchvision's ResNet-18 takes 1.814 GMAC at 224 x 224, and 1/49 of it (but for the head) at 32 x 32
    assert network.flops == pytest.approx(2 * 1.814e9 / 49, rel=0.02)


def test_the_fit_finds_what_it_was_made_from(network):
    made = model.Machine("made", 4e10, 1.5e9, 2e-4, 10e9)
    times = {str(size): made.latency + 4 * size / made.bandwidth for size in (1, 10**6, 10**7)}
    rate = 256 / model.step(made, network, 256, 1)
    took = 28 * network.parameters / made.memory
    found = model.fitted(
        {"batch": 256, "size": 32, "same_batch": {"1": rate}, "reduce": times, "optimiser": took}
    )
    assert found.flops == pytest.approx(made.flops)
    assert found.bandwidth == pytest.approx(made.bandwidth)
    assert found.latency == pytest.approx(made.latency, rel=1e-3)
    assert found.memory == pytest.approx(made.memory)


def test_limits(network):
    free = model.Machine("free talk", 1e12, 1e30, 0.0, 1e30)
    stream = model.Stream(network, 4, 1, 4096, 3, 512)
    alone = model.task(free, stream, 1, "data")
    assert model.task(free, stream, 1, "modes") == pytest.approx(alone)
    for devices in (2, 4):
        assert model.task(free, stream, devices, "data") == pytest.approx(alone / devices)
        assert model.task(free, stream, devices, "modes") == pytest.approx(alone / devices)
    slow = replace(free, bandwidth=1e8)
    assert model.task(slow, stream, 4, "modes") < alone / 3.9 < alone < model.task(slow, stream, 4, "data")
    assert model.traffic(stream, 1, "data") == model.traffic(stream, 1, "modes") == 0
    assert model.traffic(stream, 4, "modes") == 4 * 4096
    assert model.traffic(stream, 2, "data") == 4 * 8 * 4 * network.parameters
