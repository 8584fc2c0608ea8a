"""Declare two operators that a torchvision built for another torch lacks, and that Avalanche never calls.

Importing this does it; `python tests/operators.py SCRIPT` does it and runs the script.
"""

import runpy
import sys
from contextlib import suppress

import torch

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
with suppress(ModuleNotFoundError):  # no torchvision: nothing to mend
    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in ("nms", "qnms"):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
