"""The qwen3_5 family's layers as torch modules, to train and to freeze: Gated DeltaNet, and attention with a gate.

Parameters have the canonical (GGUF) names, without endings. Norms hold the whole factor and `ssm_a` holds A_log,
whatever the file says.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from turbospark.config.model import Attention, Dense, GatedDelta, Layer, ModelConfig
from turbospark.train.delta import delta_rule, delta_step
from turbospark.train.layers import KeyValues, Rotation, Take, attend_causal, rms

ENDINGS = {"ssm_a": "", "ssm_dt": ".bias"}  # the others' is .weight
OFFSETS = ("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm")  # by one, where a file has them so


class DeltaState:
    """state float32 [S, heads, dk, dv] and the convolution's last inputs, window [S, channels, taps - 1]."""

    def __init__(self, mixer: GatedDelta, sequences: int, device: torch.device, dtype: torch.dtype):
        shape = (sequences, mixer.value_heads, mixer.key_dim, mixer.value_dim)
        self.state = torch.zeros(shape, device=device)
        self.window = torch.zeros(sequences, mixer.channels, mixer.conv - 1, device=device, dtype=dtype)


def shapes(config: ModelConfig, layer: Layer) -> dict[str, tuple[int, ...]]:
    """The parameters of a layer."""
    m, hidden, width = layer.mixer, config.hidden, layer.ffn.width
    shared = {
        "attn_norm": (hidden,),
        "post_attention_norm": (hidden,),
        "ffn_gate": (width, hidden),
        "ffn_up": (width, hidden),
        "ffn_down": (hidden, width),
    }
    if isinstance(m, GatedDelta):
        values = m.value_heads * m.value_dim
        return shared | {
            "attn_qkv": (m.channels, hidden),
            "attn_gate": (values, hidden),
            "ssm_alpha": (m.value_heads, hidden),
            "ssm_beta": (m.value_heads, hidden),
            "ssm_a": (m.value_heads,),
            "ssm_dt": (m.value_heads,),
            "ssm_conv1d": (m.channels, m.conv),
            "ssm_norm": (m.value_dim,),
            "ssm_out": (hidden, values),
        }
    return shared | {
        "attn_q": (2 * m.heads * m.head_dim, hidden),
        "attn_k": (m.kv_heads * m.head_dim, hidden),
        "attn_v": (m.kv_heads * m.head_dim, hidden),
        "attn_q_norm": (m.head_dim,),
        "attn_k_norm": (m.head_dim,),
        "attn_output": (hidden, m.heads * m.head_dim),
    }


class QwenLayer(nn.Module):
    """One layer; `full` reads whole sequences, `step` one token of each. New ones have weights to begin with."""

    attn_norm: Tensor
    attn_qkv: Tensor
    attn_gate: Tensor
    ssm_alpha: Tensor
    ssm_beta: Tensor
    ssm_a: Tensor
    ssm_dt: Tensor
    ssm_conv1d: Tensor
    ssm_norm: Tensor
    ssm_out: Tensor
    attn_q: Tensor
    attn_k: Tensor
    attn_v: Tensor
    attn_q_norm: Tensor
    attn_k_norm: Tensor
    attn_output: Tensor
    post_attention_norm: Tensor
    ffn_gate: Tensor
    ffn_up: Tensor
    ffn_down: Tensor

    def __init__(self, config: ModelConfig, layer: Layer, take: Take | None, rotation: Rotation):
        super().__init__()
        self.mixer, self.eps, self.rotation = layer.mixer, config.eps, rotation
        self.delta = isinstance(layer.mixer, GatedDelta)
        for name, shape in shapes(config, layer).items():
            values = _fresh(name, shape, len(config.layers)) if take is None else self._read(config, take, name, shape)
            self.register_parameter(name, nn.Parameter(values, requires_grad=take is None))

    @staticmethod
    def serves(layer: Layer) -> bool:
        """Whether a layer is what this computes, with nothing more."""
        m, f = layer.mixer, layer.ffn
        plain = isinstance(m, GatedDelta) or (isinstance(m, Attention) and m.qk_norm and m.gated and not m.window)
        return plain and isinstance(f, Dense) and f.activation == "silu"

    def _read(self, config: ModelConfig, take: Take, name: str, shape: tuple[int, ...]) -> Tensor:
        small = len(shape) == 1 or name == "ssm_conv1d"
        values = take(name + ENDINGS.get(name, ".weight"), *shape, dtype=torch.float32 if small else None)
        if name in OFFSETS:
            return values + config.norm_offset
        return (-values).log() if name == "ssm_a" and not self.mixer.log_decay else values

    def state(self, sequences: int, positions: int) -> DeltaState | KeyValues:
        device, dtype = self.ffn_down.device, self.ffn_down.dtype
        if self.delta:
            return DeltaState(self.mixer, sequences, device, dtype)
        return KeyValues(self.mixer, sequences, positions, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [S, T, H]."""
        if self.delta:
            inputs, gates = self._inputs(x)
            padded = functional.pad(inputs, (0, 0, self.mixer.conv - 1, 0))
            mixed = padded[:, : x.shape[1]] * self.ssm_conv1d[:, 0]
            for i in range(1, self.mixer.conv):
                mixed = mixed + padded[:, i : i + x.shape[1]] * self.ssm_conv1d[:, i]
            q, k, v = self._heads(functional.silu(mixed))
            return self.mlp(x + self._out(delta_rule(q, k, v, *gates[1:]), gates[0], x.dtype))
        q, k, v, gate = self.project(x, torch.arange(x.shape[1], device=x.device)[:, None])
        return self.mlp(x + self.output(attend_causal(q, k, v, self.mixer.scale), gate))

    full = forward

    def step(self, x: Tensor, position: Tensor, state: DeltaState | KeyValues, length: int) -> Tensor:
        """x [S, H] at `position` [1]; attention looks at the first `length` positions."""
        if isinstance(state, DeltaState):
            inputs, gates = self._inputs(x)
            window = torch.cat([state.window, inputs[..., None]], -1)
            state.window.copy_(window[..., 1:])
            q, k, v = self._heads(functional.silu((window * self.ssm_conv1d).sum(-1)))
            return self.mlp(x + self._out(delta_step(state.state, q, k, v, *gates[1:]), gates[0], x.dtype))
        q, k, v, gate = self.project(x, position[:, None])
        return self.mlp(x + self.output(state.attend(q, k, v, position, length), gate))

    # Gated DeltaNet

    def _inputs(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """What the convolution reads, and z, g and beta."""
        h = rms(x, self.attn_norm, self.eps)
        a, b = functional.linear(h, self.ssm_alpha).float(), functional.linear(h, self.ssm_beta).float()
        g = -self.ssm_a.exp() * functional.softplus(a + self.ssm_dt)
        return functional.linear(h, self.attn_qkv), (functional.linear(h, self.attn_gate), g, b.sigmoid())

    def _heads(self, mixed: Tensor) -> list[Tensor]:
        """float32 q, k and v, [..., value heads, d], of what the convolution made."""
        m, keys = self.mixer, self.mixer.key_heads * self.mixer.key_dim
        q, k, v = mixed.float().split([keys, keys, m.value_heads * m.value_dim], -1)
        q, k = (part.unflatten(-1, (m.key_heads, m.key_dim)) for part in (q, k))
        q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (q, k))
        shared = m.value_heads // m.key_heads
        spread = lambda p: torch.cat([p] * shared, -2) if m.tiled else p.repeat_interleave(shared, -2)
        return [spread(q) * m.key_dim**-0.5, spread(k), v.unflatten(-1, (m.value_heads, m.value_dim))]

    def _out(self, mix: Tensor, z: Tensor, dtype: torch.dtype) -> Tensor:
        gate = functional.silu(z.float().unflatten(-1, (-1, self.mixer.value_dim)))
        mix = (rms(mix, self.ssm_norm, self.eps) * gate).flatten(-2)
        return functional.linear(mix.to(self.ssm_out.dtype), self.ssm_out).to(dtype)

    # attention

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k (normed, turned) and v [..., heads, d], and the gate [..., heads * d]."""
        m, h = self.mixer, rms(x, self.attn_norm, self.eps)
        q, gate = functional.linear(h, self.attn_q).unflatten(-1, (m.heads, 2 * m.head_dim)).chunk(2, -1)
        k, v = (functional.linear(h, w).unflatten(-1, (m.kv_heads, -1)) for w in (self.attn_k, self.attn_v))
        q, k = rms(q, self.attn_q_norm, self.eps), rms(k, self.attn_k_norm, self.eps)
        return self.rotation(q, positions), self.rotation(k, positions), v, gate.flatten(-2)

    def output(self, mix: Tensor, gate: Tensor) -> Tensor:
        return functional.linear(mix * gate.sigmoid(), self.attn_output)

    def mlp(self, x: Tensor) -> Tensor:
        h = rms(x, self.post_attention_norm, self.eps)
        gate, up = functional.linear(h, self.ffn_gate), functional.linear(h, self.ffn_up)
        return x + functional.linear(functional.silu(gate) * up, self.ffn_down)


def _fresh(name: str, shape: tuple[int, ...], layers: int) -> Tensor:
    """Weights to begin with: decays from slow to fast, what ends a branch small."""
    if name == "ssm_a":
        return torch.linspace(1, 16, shape[0]).log()
    if name == "ssm_dt":
        rate = torch.logspace(-3, -1, shape[0])
        return rate + torch.log(-torch.expm1(-rate))  # softplus of it is the rate
    if len(shape) == 1:
        return torch.ones(shape)
    if name == "ssm_conv1d":
        return (torch.rand(shape) * 2 - 1) * shape[1] ** -0.5
    scale = shape[1] ** -0.5
    if name in ("attn_output", "ssm_out", "ffn_down"):
        scale *= (2 * layers) ** -0.5
    return torch.randn(shape) * scale
