"""The gated delta rule in chunks against its recurrence, values and gradients."""

import pytest
import torch

from turbospark.train.delta import CHUNK, delta_rule, delta_step, unit_lower_inverse

torch.set_num_threads(1)


def inputs(length, seed=0):
    torch.manual_seed(seed)
    unit = lambda *shape: torch.nn.functional.normalize(torch.randn(*shape), dim=-1)
    q, k, v = unit(2, length, 3, 8), unit(2, length, 3, 8), torch.randn(2, length, 3, 5)
    return q, k, v, -torch.rand(2, length, 3) * 0.3, torch.rand(2, length, 3)


def stepped(q, k, v, g, beta):
    state, out = torch.zeros(2, 3, 8, 5), []
    for i in range(q.shape[1]):
        out.append(delta_step(state, *(part[:, i] for part in (q, k, v, g, beta))))
    return torch.stack(out, 1)


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_chunks_say_what_steps_say(length):
    given = inputs(length)
    want = stepped(*given)
    torch.testing.assert_close(delta_rule(*given), want, rtol=1e-4, atol=1e-5)
    moved = [part.roll(1, 2) if i == 1 else part for i, part in enumerate(given)]
    assert (delta_rule(*moved) - want).abs().max() > 0.1


def test_gradients_do_not_depend_on_the_chunk():
    found = []
    for chunk in (16, 64):
        given = [part.clone().requires_grad_() for part in inputs(70)]
        (delta_rule(*given, chunk=chunk) ** 2).sum().backward()
        found.append([part.grad for part in given])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 8, 64])
def test_a_unit_triangle_is_inverted_also_when_its_powers_explode(n):
    strict = torch.ones(n, n).tril(-1)  # all keys equal, nothing forgotten
    inverse = unit_lower_inverse(strict)
    torch.testing.assert_close(inverse @ (torch.eye(n) + strict), torch.eye(n))
