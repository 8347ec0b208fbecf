"""Every family is known from its headers: `info` tells its layers, and counts every number of the file once."""

import json

import pytest

from tests.tiny import deepseek2, dense, gemma3, hf, llama, qwen3_5
from turbospark.cli.main import main


def write(name, path):
    if name.startswith("deepseek"):
        config = deepseek2.V2 if name == "deepseek_v2" else deepseek2.V3
        return deepseek2.write_deepseek2_gguf(path, config, deepseek2.weights(config))
    if name.startswith("qwen"):
        return qwen3_5.write_qwen_gguf(path, qwen3_5.hf_model(moe=name == "qwen3_5_moe"))
    if name == "gemma3":
        return hf.write(path, gemma3.tiny_gemma3())
    return dense.write_dense_gguf(path, llama.tiny_llama())


@pytest.mark.parametrize(
    ("name", "family", "layers"),
    [
        ("llama", "llama", ["3 x attention", "3 x feed-forward"]),
        ("gemma3", "gemma3", ["3 x attention", "1 x attention", "4 x feed-forward"]),
        ("qwen3_5", "qwen3_5", ["2 x gated delta rule", "2 x attention", "4 x feed-forward"]),
        ("qwen3_5_moe", "qwen3_5", ["2 x gated delta rule", "2 x attention", "4 x mixture of 8 experts of width 24"]),
        (
            "deepseek_v2",
            "deepseek2",
            ["3 x latent attention", "1 x feed-forward", "2 x mixture of 8 experts of width 24"],
        ),
        (
            "deepseek_v3",
            "deepseek2",
            ["3 x latent attention", "1 x feed-forward", "2 x mixture of 8 experts of width 24"],
        ),
    ],
)
def test_a_family_is_known_from_its_headers(tmp_path, capsys, name, family, layers):
    path = str(write(name, tmp_path / "model"))
    assert main(["probe", path]) == 0
    assert main(["info", path]) == 0
    lines = [line.split(",")[0] for line in capsys.readouterr().out.splitlines() if " x " in line]
    assert [line[17:] for line in lines] == layers
    assert main(["info", path, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["config"]["family"] == family
    assert 4 * told["parameters"] == told["nbytes"]  # all are F32
