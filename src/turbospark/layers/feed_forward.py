"""The gated feed-forward as a branch of the stream, dense or as a mixture of experts with a shared one."""

from __future__ import annotations

from time import perf_counter
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
        self.store, self.traffic = w.experts(config.experts, config.width, hidden), w.residency.traffic
        self.shared = self.shared_gate = None
        if config.shared_width:
            self.shared = gated_mlp(config.shared_width, hidden, config.activation, w, "_shexp")
        if config.shared_gate:
            self.shared_gate = w.matrix("ffn_gate_inp_shexp", 1, hidden)
        self.store.guess = lambda x: self._route(x)[2]  # for the layer before this one

    def __call__(self, x: Any) -> Any:
        kernels, store, traffic = self.kernels, self.store, self.traffic
        begun, waited = perf_counter(), traffic.wait_s
        n, logits, ids, weights = self._route(x)
        self.trace("router_logits", logits)
        self.trace("experts", ids)
        self.trace("expert_weights", weights)
        store.request(ids)
        store.look_ahead(x)
        routed = perf_counter()
        base = None if self.shared is None else kernels.gated_mlp(n, None, self.shared)
        if base is not None and self.shared_gate is not None:
            base = base * kernels.sigmoid(kernels.linear(n, self.shared_gate))
        shared = perf_counter()
        out = x + kernels.experts(n, ids, weights, store, self.config.activation, base)
        traffic.route_s += routed - begun
        traffic.shared_s += shared - routed
        traffic.experts_s += perf_counter() - shared - (traffic.wait_s - waited)
        return out

    def _route(self, x: Any) -> tuple[Any, Any, Any, Any]:
        """x [R, H] normed, the router's logits, and the experts [R, used] and weights that follow."""
        n = self.kernels.norm(x, self.before.weight, self.before.eps)
        logits = self.kernels.linear(n, self.router)
        return n, logits, *self.kernels.route(logits, self.config, self.bias)


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
