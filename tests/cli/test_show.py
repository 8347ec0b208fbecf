"""`info`, `probe` and `list`, on files written here."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.tiny.alphabet import alphabet_parts, write_alphabet, write_ids_only
from tests.tiny.gguf_file import split_gguf, tensor, write_gguf
from turbospark import catalog
from turbospark.cli.main import main


def shown(capsys, argv, status=0):
    assert main(argv) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


def rows(text):
    """{name: [lines]} of what `info` prints."""
    found, name = {}, ""
    for line in text.splitlines()[1:]:
        name = line[2:17].strip() or name
        found.setdefault(name, []).append(line[17:])
    return found


def test_info_tells_what_a_model_is(model, capsys):
    told = rows(shown(capsys, ["info", model]))
    assert told["path"] == [model]
    assert told["family"] == ["llama, declared as llama"]
    assert told["geometry"] == ["hidden 264, vocabulary 261, context 256"]
    assert told["layers"] == [
        "1 x attention, 2 heads over 1 of width 8, rotation 10000",
        "1 x feed-forward, width 16, silu",
    ]
    assert "12 tensors" in told["format"][0]
    assert told["quantisation"][0].split()[:3] == ["F32", "12", "tensors"]
    assert told["chat template"] == ["yes"]
    assert told["end tokens"] == [
        "257 <|eos|>  (tokenizer.ggml.eos_token_id)",
        "259 <|im_end|>  (named <|im_end|>)",
    ]
    assert told["would run"] == ["yes"]


def test_info_as_json_tells_the_same(model, capsys):
    told = json.loads(shown(capsys, ["info", model, "--json"]))
    assert told["config"]["family"] == "llama"
    assert told["config"]["layers"] == 1
    assert told["config"]["mixers"][0]["kind"] == "Attention"
    assert told["config"]["mixers"][0]["count"] == 1
    assert told["end_tokens"][0] == {"id": 257, "text": "<|eos|>", "sources": ["tokenizer.ggml.eos_token_id"]}
    assert told["parameters"] == 2 * 261 * 264 + 3 * 264 + 6 * 8 * 264 + 3 * 16 * 264
    assert told["runs"] is True


def test_memory_is_weights_and_cache_at_the_context_asked_for(model, capsys):
    told = json.loads(shown(capsys, ["info", model, "--json", "--max-context", "128"]))
    footprint = told["footprint"]
    assert footprint["context"] == 128
    assert footprint["weights"] == 4 * told["parameters"]
    assert footprint["cache"] == 128 * (2 * 8 + 8) * 4  # keys, values, and a rotation's cosines and sines
    assert footprint["total"] == footprint["weights"] + footprint["cache"] + footprint["working"]
    assert 0 < told["memory"]["available"] <= told["memory"]["total"]


def test_formats_come_with_counts_and_bytes(tmp_path, capsys):
    metadata, tensors = alphabet_parts()
    tensors["output.weight"] = tensor("F16", tensors["output.weight"])
    told = json.loads(shown(capsys, ["info", str(write_gguf(tmp_path / "m.gguf", metadata, tensors)), "--json"]))
    assert {"format": "F16", "tensors": 1, "nbytes": 2 * 261 * 264} in told["formats"]
    assert sum(kind["nbytes"] for kind in told["formats"]) == told["nbytes"]
    assert sum(kind["tensors"] for kind in told["formats"]) == told["tensors"] == 12


def test_a_split_file_is_one_model(tmp_path, capsys):
    metadata, tensors = alphabet_parts()
    names = list(tensors)
    parts = [{name: tensors[name] for name in names[:5]}, {name: tensors[name] for name in names[5:]}]
    paths = split_gguf(tmp_path, "m", metadata, parts)
    told = json.loads(shown(capsys, ["info", str(paths[1]), "--json"]))
    assert (told["files"], told["tensors"], told["runs"]) == (2, 12, True)
    paths[0].unlink()
    assert "m-00001-of-00002.gguf" in shown(capsys, ["probe", str(paths[1])], 1)


def test_a_folder_without_a_tokenizer_works_on_ids(tmp_path, capsys):
    folder = str(write_ids_only(tmp_path))
    told = rows(shown(capsys, ["info", folder]))
    assert told["tokenizer"] == ["none: works on token ids alone"]
    assert "chat template" not in told
    assert shown(capsys, ["probe", folder]).endswith("would run\n")


def test_probe_says_yes(model, capsys):
    assert shown(capsys, ["probe", model]) == f"{model}: would run\n"
    assert json.loads(shown(capsys, ["probe", model, "--json"])) == {"path": model, "runs": True, "problems": []}


def spoiled(tmp_path, change):
    metadata, tensors = alphabet_parts()
    change(metadata, tensors)
    return str(write_gguf(tmp_path / "spoiled.gguf", metadata, tensors))


@pytest.mark.parametrize("command", ["info", "probe"])
@pytest.mark.parametrize(
    ("change", "code", "names"),
    [
        (lambda m, t: t.pop("blk.0.attn_k.weight"), "missing_tensor", ["blk.0.attn_k.weight"]),
        (lambda m, t: t.update({"blk.0.frob": np.zeros(3, np.float32)}), "unused_tensor", ["blk.0.frob"]),
        (lambda m, t: m.update({"llama.block_count": 2}), "missing_tensor", ["blk.1.attn_q.weight"]),
        (lambda m, t: m.update({"llama.feed_forward_length": 17}), "shape_mismatch", ["blk.0.ffn_gate", "17", "16"]),
        (lambda m, t: m.update({"general.architecture": "abacus"}), "unsupported_family", ["abacus"]),
        (lambda m, t: m.pop("llama.context_length"), "missing_key", ["llama.context_length"]),
        (lambda m, t: m.update({"tokenizer.ggml.model": "slate"}), "unsupported_tokenizer", ["slate"]),
        (lambda m, t: m.update({"tokenizer.ggml.eos_token_id": 999}), "bad_tokenizer", ["999", "261"]),
    ],
)
def test_what_would_not_run_is_listed_by_name(tmp_path, capsys, command, change, code, names):
    out = shown(capsys, [command, spoiled(tmp_path, change)], 1)
    line = next(line for line in out.splitlines() if f"[{code}]" in line)
    assert all(name in line for name in names)
    assert "would run      yes" not in out


def test_a_tokenizer_that_cannot_be_read_is_not_called_none(tmp_path, capsys):
    path = spoiled(tmp_path, lambda metadata, tensors: metadata.update({"tokenizer.ggml.model": "slate"}))
    assert "tokenizer" not in rows(shown(capsys, ["info", path], 1))
    assert json.loads(shown(capsys, ["info", path, "--json"], 1))["tokenizer"] is None


def test_all_reasons_are_listed_together(tmp_path, capsys):
    def change(metadata, tensors):
        for name in ("blk.0.ffn_up.weight", "blk.0.ffn_gate.weight"):
            tensors[name] = dataclasses.replace(tensor("F32", tensors[name]), type=99)
        del tensors["blk.0.attn_v.weight"]
        metadata["tokenizer.ggml.model"] = "slate"

    told = json.loads(shown(capsys, ["probe", spoiled(tmp_path, change), "--json"], 1))
    codes = [problem["code"] for problem in told["problems"]]
    assert sorted(codes) == ["missing_tensor", "unsupported_format", "unsupported_tokenizer"]
    formats = next(problem for problem in told["problems"] if problem["code"] == "unsupported_format")
    assert "blk.0.ffn_up.weight" in formats["message"]
    assert "blk.0.ffn_gate.weight" in formats["message"]


def test_a_type_that_only_an_unused_tensor_has_is_no_reason(tmp_path, capsys):
    def change(metadata, tensors):
        rope = tensor("F32", np.zeros((8, 1), np.float32))
        tensors["blk.0.attn_rot_embd.weight"] = dataclasses.replace(rope, type=99)

    assert "would run" in shown(capsys, ["probe", spoiled(tmp_path, change)])


def test_probe_lists_why_a_file_cannot_be_opened(tmp_path, capsys):
    path = write_alphabet(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    out = shown(capsys, ["probe", str(path)], 1)
    assert "would not run" in out
    assert "[file_cut]" in out
    told = json.loads(shown(capsys, ["probe", str(path), "--json"], 1))
    assert (told["runs"], told["problems"][0]["code"]) == (False, "file_cut")


def test_list_says_what_is_here_and_where(tmp_path, capsys, monkeypatch):
    here, absent = (dataclasses.replace(catalog.ALIASES["smollm2"], name=name) for name in ("here", "absent"))
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(2_500_000))
    monkeypatch.setattr(catalog, "ALIASES", {"here": here, "absent": absent})
    monkeypatch.setattr("turbospark.cli.show.ALIASES", catalog.ALIASES)
    monkeypatch.setattr("turbospark.cli.show.present", lambda alias: file if alias is here else None)
    out = shown(capsys, ["list"])
    assert "2.5 MB" in out
    assert str(file) in out
    assert "not here; `turbospark run absent`" in out
    told = {entry["name"]: entry for entry in json.loads(shown(capsys, ["list", "--json"]))}
    assert (told["here"]["present"], told["here"]["path"], told["here"]["nbytes"]) == (True, str(file), 2_500_000)
    assert (told["absent"]["present"], told["absent"]["path"]) == (False, None)


@pytest.mark.parametrize(
    ("argv", "heavy"),
    [
        (["--help"], ["numpy", "ml_dtypes", "tokenizers", "jinja2", "huggingface_hub", "torch", "numba"]),
        (["run", "--help"], ["numpy", "ml_dtypes", "tokenizers", "jinja2", "huggingface_hub", "torch", "numba"]),
        (["info", "MODEL"], ["tokenizers", "jinja2", "huggingface_hub", "torch", "numba"]),
        (["probe", "MODEL"], ["tokenizers", "jinja2", "huggingface_hub", "torch", "numba"]),
        (["list"], ["numpy", "tokenizers", "jinja2", "torch", "numba"]),
    ],
)
def test_quick_commands_import_nothing_heavy(model, argv, heavy):
    argv = [model if word == "MODEL" else word for word in argv]
    code = f"import sys; from turbospark.cli.main import main; status = main({argv!r}); print()\n"
    code += f"print(status, [name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "0 []")


@pytest.mark.parametrize("command", ["run", "info", "probe", "list", "import", "pull", "verify", "rm"])
def test_every_command_explains_itself_with_examples(command, capsys):
    out = shown(capsys, [command, "--help"])
    assert "examples:" in out
    assert f"turbospark {command}" in out


def test_the_version_is_told(capsys):
    from turbospark import __version__

    assert shown(capsys, ["--version"]) == f"turbospark {__version__}\n"


def test_info_tells_what_computes_here_without_a_model(capsys):
    out = shown(capsys, ["info", "--backend"])
    assert out.startswith("cpu\n")
    assert "Q4_K" in out
    told = json.loads(shown(capsys, ["info", "--backend", "--json"]))
    assert told["threads"] >= 1
    assert told["kernels"]["Q8_0"] == "8-bit activations"


def test_info_without_a_model_says_what_it_needs(capsys):
    assert main(["info"]) == 2
    assert "info needs a MODEL, or --backend" in capsys.readouterr().err
