"""The gated feed-forward, dense or as a mixture of experts with a shared one."""

from __future__ import annotations

from typing import Any

from turbospark.config.model import Dense, MoE
from turbospark.layers.weights import Weights


class GatedLinear:
    """down(act(gate x) * up x); `suffix` tells the shared expert's names from the dense ones."""

    def __init__(self, width: int, hidden: int, activation: str, w: Weights, suffix: str = ""):
        self.activation, self.kernels, self.trace = activation, w.kernels, w.trace
        self.gate = w.matrix("ffn_gate" + suffix, width, hidden)
        self.up = w.matrix("ffn_up" + suffix, width, hidden)
        self.down = w.matrix("ffn_down" + suffix, hidden, width)

    def __call__(self, x: Any) -> Any:
        linear = self.kernels.linear
        return linear(self.kernels.gate(linear(x, self.gate), linear(x, self.up), self.activation), self.down)


class Mixture:
    """Routed experts added, in routing order, to the shared expert's output."""

    def __init__(self, config: MoE, hidden: int, w: Weights):
        self.config, self.kernels, self.trace = config, w.kernels, w.trace
        self.router = w.matrix("ffn_gate_inp", config.experts, hidden)
        self.bias = w.vector("exp_probs_b", config.experts, suffix=".bias") if config.bias else None
        self.store = w.experts(config.experts, config.width, hidden)
        self.shared = self.shared_gate = None
        if config.shared_width:
            self.shared = GatedLinear(config.shared_width, hidden, config.activation, w, "_shexp")
        if config.shared_gate:
            self.shared_gate = w.matrix("ffn_gate_inp_shexp", 1, hidden)

    def __call__(self, x: Any) -> Any:
        kernels = self.kernels
        logits = kernels.linear(x, self.router)
        ids, weights = kernels.route(logits, self.config, self.bias)
        self.trace("router_logits", logits)
        self.trace("experts", ids)
        self.trace("expert_weights", weights)
        base = None if self.shared is None else self.shared(x)
        if base is not None and self.shared_gate is not None:
            base = base * kernels.sigmoid(kernels.linear(x, self.shared_gate))
        return kernels.experts(x, ids, weights, self.store, self.config.activation, base)


def feed_forward(config: Dense | MoE, hidden: int, w: Weights) -> GatedLinear | Mixture:
    """The feed-forward a layer's config asks for."""
    if isinstance(config, MoE):
        return Mixture(config, hidden, w)
    return GatedLinear(config.width, hidden, config.activation, w)
