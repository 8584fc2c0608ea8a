"""A network through torch.compile, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from manymodes import distributed
from manymodes.errors import UserError, one_line, require

Network = Callable[[Tensor], Tensor]


def compiled(module: nn.Module) -> Network:
    """The same function of its parameters and buffers, compiled when it is first called.

    The compiled code reads the parameters anew in each call: binding the module to another vector
    compiles nothing again.
    """
    network: Network | None = None
    first = next(p for p in module.parameters() if p.requires_grad)  # where the flat vector begins
    place = 0

    def run(inputs: Tensor) -> Tensor:
        nonlocal network, place
        if network is None:
            require(distributed.count() == 1, "compile: with several processes leave it out")
            network, place = torch.compile(module), first.data_ptr() % 16
        # Code for a GPU reads 16 bytes at once where that was possible for the vector it was compiled with.
        require(
            not first.is_cuda or first.data_ptr() % 16 == place,
            "compile: on a GPU every mode must begin at a multiple of 16 bytes, and with this number of "
            "parameters they do not: leave it out",
        )
        try:
            return network(inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise UserError(
                f"compile: torch.compile cannot do this network here ({_reason(error)}): leave it out"
            ) from None

    return run


def _reason(error: Exception) -> str:
    """The cause itself, without the advice that PyTorch wraps it in."""
    inner = getattr(error, "inner_exception", None) or error
    return one_line(str(inner).split("\n\n")[0])
