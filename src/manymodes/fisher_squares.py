"""Sum over samples s of (J_s^T v_s)^2, J_s the Jacobian of a sample's logits: every diagonal Fisher is one.

Layers with a rule need one backward pass of the whole batch, in which no parameter's gradient is computed.
Everything else goes sample by sample, and so does whatever a rule gets wrong on the first sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from manymodes.errors import require
from manymodes.fisher_conv import ConvRule
from manymodes.fisher_rules import NORMALISE, EmbeddingRule, LinearRule, NormRule, Rule
from manymodes.fisher_samples import SampleSquares, squares_of
from manymodes.flat import FlatModel
from manymodes.products import dense_layers, quick

# Found by the forward function: a subclass that computes something else is not mistaken for its parent.
RULES: dict[Callable[..., Any], type[Rule]] = {
    nn.Linear.forward: LinearRule,
    nn.Conv1d.forward: ConvRule,
    nn.Conv2d.forward: ConvRule,
    nn.Conv3d.forward: ConvRule,
    nn.Embedding.forward: EmbeddingRule,
    **dict.fromkeys(NORMALISE, NormRule),
}

PLAIN = ("weight", "bias")  # what the rules know

# From logits (S, C): how many cotangents there are per sample, and a function that makes the k-th (S, C).
Cotangents = Callable[[Tensor], tuple[int, Callable[[int], Tensor]]]


class _Call(NamedTuple):
    """What a hook saw: a layer's input, and where the gradient of its output arrives."""

    x: Tensor
    edge: GradientEdge
    shape: torch.Size


class SquareSums:
    """The running sum for a flat model, in its order. To be used while the model is `untouched`."""

    def __init__(self, flat: FlatModel) -> None:
        self.flat, self.module = flat, flat.module
        self.dtype = torch.promote_types(flat.theta.dtype, torch.float32)
        named = dict(self.module.named_parameters())
        self.dense = dense_layers(self.module)
        self.parameters = {s.name: named[s.name] for s in flat.segments if named[s.name].requires_grad}
        self.owned = _owned(self.module, self.parameters)
        self.rules = {
            layer: RULES[type(layer).forward](layer, set(names), self.dtype)
            for layer, names in self.owned.items()
        }
        ruled = {name for names in self.owned.values() for name in names.values()}
        self.unsure = ruled  # not compared with autograd: until the first batch, or for want of a gradient
        self.slow: dict[str, Tensor] = {}
        self._slow_down(self.parameters.keys() - ruled)
        self.by_sample = SampleSquares(self.module, self.dtype)
        self.probed, self.memory_format = False, torch.contiguous_format

    def add(self, inputs: Tensor, cotangents: Cotangents) -> None:
        """Add a batch: forward, then one backward per cotangent."""
        if not self.probed:
            self._probe(inputs[:2])
        with quick(self.dense, weights=False):  # only the gradients at the layers' outputs are asked for
            logits, calls = self._forward(inputs)
        count, cotangent = cotangents(logits.detach())
        for k in range(count):
            self._add_ruled(self.rules, calls, logits, cotangent(k), keep=k < count - 1)
        self._slow_down(self._nonzero(self.unsure))
        slow = {name: self.parameters[name] for name in self.slow}
        for k in range(count if slow else 0):
            for name, squares in self.by_sample(slow, inputs, cotangent(k)).items():
                self.slow[name].add_(squares)

    def result(self) -> Tensor:
        """The sum so far (P,); parameters frozen since the model was flattened get zero."""
        total = torch.zeros(self.flat.theta.shape, dtype=self.dtype, device=self.flat.device)
        where = {segment.name: segment.slice for segment in self.flat.segments}
        for layer, owned in self.owned.items():
            for local, name in owned.items():
                squares = self.rules[layer].result(local)
                total[where[name]].view(squares.shape).copy_(squares)
        total.clamp_min_(0)  # an expanded square may round to just below zero
        for name, squares in self.slow.items():
            total[where[name]] += squares.reshape(-1)
        return total

    def _forward(self, inputs: Tensor) -> tuple[Tensor, dict[nn.Module, _Call]]:
        """The logits, and the one call of each layer that its rule can deal with; others slow down."""
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=self.memory_format)
        with _watching([layer for layer, rule in self.rules.items() if rule.names]) as calls:
            logits = self.module(inputs)
        wanted = f"logits ({len(inputs)}, outputs)"
        require(isinstance(logits, Tensor), f"the module returns {type(logits).__name__}, not {wanted}")
        shape = tuple(logits.shape)
        require(
            len(shape) == 2 and shape[0] == len(inputs), f"the module returns shape {shape}, not {wanted}"
        )
        fit = {
            layer: first
            for layer, (first, *more) in calls.items()
            if first is not None and not more and self.rules[layer].fits(first.x, first.shape, len(inputs))
        }
        self._slow_down(name for layer in calls.keys() - fit.keys() for name in self.owned[layer].values())
        return logits, fit

    def _add_ruled(
        self,
        rules: dict[nn.Module, Rule],
        calls: dict[nn.Module, _Call],
        logits: Tensor,
        v: Tensor,
        keep: bool,
    ) -> None:
        if not calls or not logits.requires_grad:
            return
        edges = [call.edge for call in calls.values()]
        grads = torch.autograd.grad(logits, edges, v.to(logits), retain_graph=keep, allow_unused=True)
        for (layer, call), g in zip(calls.items(), grads, strict=True):
            if g is not None:
                rules[layer].add(call.x, g, len(logits))

    def _slow_down(self, names: Iterable[str]) -> None:
        """From now on these go sample by sample; what an unchecked rule has summed is forgotten."""
        for name in set(names) - self.slow.keys():
            self.slow[name] = torch.zeros_like(self.parameters[name], dtype=self.dtype, requires_grad=False)
        for layer, owned in self.owned.items():
            rule = self.rules[layer]
            for local in [local for local in rule.names if owned[local] in self.slow]:
                rule.names.remove(local)
                if owned[local] in self.unsure:
                    rule.sums[local].zero_()

    def _nonzero(self, names: set[str]) -> list[str]:
        """Those whose rule has summed anything."""
        pairs = [(layer, *pair) for layer, owned in self.owned.items() for pair in owned.items()]
        return [n for layer, local, n in pairs if n in names and self.rules[layer].sums[local].any()]

    def _probe(self, inputs: Tensor) -> None:
        """Compare the rules with autograd on a sample beside another; wrong ones go sample by sample.

        The cotangent is random: a sample whose own happens to vanish tells as much as any.
        """
        self.probed = True
        logits, calls = self._first_forward(inputs)
        if not logits.isfinite().all():
            return  # nothing to compare; the cotangents refuse such logits with the sample's number
        precision = max(1e-3, 16 * torch.finfo(self.flat.theta.dtype).eps)
        self._check_alone(inputs, logits.detach(), precision)
        v = torch.zeros_like(logits)
        v[0] = torch.randn(len(v[0]), generator=torch.Generator().manual_seed(0)).to(v)
        parameters = {name: self.parameters[name] for name in self.unsure - self.slow.keys()}
        expected = squares_of(logits, parameters, v, self.dtype)
        rules = {layer: type(r)(layer, set(r.names), self.dtype) for layer, r in self.rules.items()}
        self._add_ruled(rules, calls, logits, v, keep=False)
        for layer, owned in self.owned.items():
            for local in rules[layer].names:
                found, squares = rules[layer].result(local), expected[owned[local]]
                error, top = torch.dist(found, squares.view(found.shape), p=torch.inf), squares.max()
                if not error <= precision * top:
                    self._slow_down([owned[local]])
                elif top > 0:
                    self.unsure.discard(owned[local])

    def _check_alone(self, inputs: Tensor, logits: Tensor, precision: float) -> None:
        """A sample must be treated as if it were alone."""
        same = False
        with torch.no_grad(), suppress(ValueError):  # some norms refuse a lone sample
            alone = self.module(inputs[:1])
            same = torch.allclose(alone, logits[:1], rtol=0.0, atol=precision * float(logits.abs().max()))
        require(
            same,
            "in eval mode a sample's logits still change with its batch (batch statistics? randomness?): "
            "the Fisher of one sample needs a module that treats every sample alone",
        )

    def _first_forward(self, inputs: Tensor) -> tuple[Tensor, dict[nn.Module, _Call]]:
        """Channels last is up to four times faster on a CPU; a module that takes views may refuse it."""
        if inputs.device.type == "cpu" and any(isinstance(layer, nn.Conv2d) for layer in self.rules):
            self.memory_format = torch.channels_last
            try:
                return self._forward(inputs)
            except RuntimeError:
                self.memory_format = torch.contiguous_format
        return self._forward(inputs)


@contextmanager
def _watching(layers: list[nn.Module]) -> Iterator[dict[nn.Module, list[_Call | None]]]:
    """Note every call of these layers, before anyone else's hook sees the output."""
    calls: dict[nn.Module, list[_Call | None]] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = args[0] if args else kwargs.get("input")
        if isinstance(output, Tensor) and not output.requires_grad:
            return  # called without gradients: no contribution
        call = None
        if isinstance(x, Tensor) and isinstance(output, Tensor):
            call = _Call(x.detach(), get_gradient_edge(output), output.shape)
        calls.setdefault(layer, []).append(call)

    handles = [layer.register_forward_hook(note, prepend=True, with_kwargs=True) for layer in layers]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _owned(module: nn.Module, wanted: dict[str, nn.Parameter]) -> dict[nn.Module, dict[str, str]]:
    """Each layer with a rule, and its untied parameters: its own name for them -> ours."""
    uses = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    ours = {id(p): name for name, p in wanted.items() if uses[id(p)] == 1}
    owned = {
        layer: {n: ours[id(p)] for n, p in layer._parameters.items() if n in PLAIN and id(p) in ours}
        for layer in module.modules()
        if type(layer).forward in RULES
    }
    return {layer: names for layer, names in owned.items() if names}
