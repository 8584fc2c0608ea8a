"""What all tests share: one thread, usual signals, Hypothesis without a clock (the machine may be busy)."""

import os
import signal

import hypothesis
import pytest
import torch

torch.set_num_threads(1)  # tiny networks: a second thread only adds waiting, and sums stay in one order
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def _same_global_randomness():
    """Tests draw from generators of their own; this is for what draws from the global one."""
    torch.manual_seed(0)
