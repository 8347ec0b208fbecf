"""The gated feed-forward as a branch of the stream, dense or as a mixture of experts with a shared one."""

from __future__ import annotations

from typing import Any

from turbospark.config.model import Dense, ModelConfig, MoE
from turbospark.kernels.parts import FeedForwardBranch, GatedMLP, Norm
from turbospark.layers.weights import Weights


class FeedForward:
    """x + after(down(act(gate n) * up n)), n = before(x): x [R, H] -> [R, H]."""

    def __init__(self, config: Dense, hidden: int, w: Weights, before: Norm, after: Norm | None = None):
        self.kernels, self.trace = w.kernels, w.trace
        self.branch = FeedForwardBranch(before, gated_mlp(config.width, hidden, config.activation, w), after)

    def __call__(self, x: Any) -> Any:
        return self.kernels.feed_forward(x, self.branch.before, self.branch.mlp, self.branch.after)


class Mixture:
    """x + shared(n) + routed experts of n = before(x), added in routing order: x [R, H] -> [R, H]."""

    branch = None  # no backend takes it as a whole

    def __init__(self, config: MoE, hidden: int, w: Weights, before: Norm):
        self.config, self.kernels, self.before, self.trace = config, w.kernels, before, w.trace
        self.router = w.matrix("ffn_gate_inp", config.experts, hidden)
        self.bias = w.vector("exp_probs_b", config.experts, suffix=".bias") if config.bias else None
        self.store = w.experts(config.experts, config.width, hidden)
        self.shared = self.shared_gate = None
        if config.shared_width:
            self.shared = gated_mlp(config.shared_width, hidden, config.activation, w, "_shexp")
        if config.shared_gate:
            self.shared_gate = w.matrix("ffn_gate_inp_shexp", 1, hidden)

    def __call__(self, x: Any) -> Any:
        kernels = self.kernels
        n = kernels.norm(x, self.before.weight, self.before.eps)
        logits = kernels.linear(n, self.router)
        ids, weights = kernels.route(logits, self.config, self.bias)
        self.trace("router_logits", logits)
        self.trace("experts", ids)
        self.trace("expert_weights", weights)
        base = None if self.shared is None else kernels.gated_mlp(n, None, self.shared)
        if base is not None and self.shared_gate is not None:
            base = base * kernels.sigmoid(kernels.linear(n, self.shared_gate))
        return x + kernels.experts(n, ids, weights, self.store, self.config.activation, base)


def gated_mlp(width: int, hidden: int, activation: str, w: Weights, suffix: str = "") -> GatedMLP:
    """The three matrices; `suffix` tells the shared expert's names from the dense ones."""
    return GatedMLP(
        w.matrix("ffn_gate" + suffix, width, hidden),
        w.matrix("ffn_up" + suffix, width, hidden),
        w.matrix("ffn_down" + suffix, hidden, width),
        activation,
        w.trace,
    )


def feed_forward(config: Dense | MoE, model: ModelConfig, w: Weights, before: Norm) -> FeedForward | Mixture:
    """The feed-forward a layer's config asks for."""
    kind = Mixture if isinstance(config, MoE) else FeedForward
    return kind(config, model.hidden, w, before)  # type: ignore[arg-type]
