"""From names to drafters: kinds, folders, GGUF files, inside the model's file, beside it, shipped; any format."""

import json
import shutil

import numpy as np
import pytest
import torch

import turbospark
from tests.tiny.dflash import dflash_arrays, dflash_config, write_dflash, write_dflash_gguf
from tests.tiny.gguf_file import write_gguf
from tests.tiny.memory import llama_arrays, llama_config
from tests.tiny.oracle import params, run
from tests.tiny.trunks import VOCAB, write_llama, write_trunk
from turbospark import quant
from turbospark.draft import find
from turbospark.draft.dflash import DFlash
from turbospark.draft.fingerprint import fingerprint
from turbospark.draft.load import blocker, load_drafter
from turbospark.draft.ngram import NGram
from turbospark.engine.loop import Engine
from turbospark.errors import TurbosparkError

PROMPT = [1, 2, 3, 4, 5]


def loaded(lm, named, **options):
    return load_drafter(named, lm.engine.model, lm.checkpoint, 2, 32, **options)


def proposals(lm, drafter, count=5):
    """What a drafter proposes after a prompt and in the rounds behind it: a stand-in for its every weight."""
    engine = Engine(lm.engine.model, 2, 32, drafter)
    said, propose = [], drafter.propose
    drafter.propose = lambda *args: said.append(propose(*args)) or said[-1]
    run(engine, engine.submit(PROMPT, params(lm.engine.model, max_new=24, speculative=count)))
    return said


@pytest.fixture(params=[True, False], ids=["dflash2", "dflash"])
def folder(request, tmp_path, trunk):
    return write_dflash(tmp_path / "drafter", dflash_config(trunk.config, request.param))


def test_a_folder_becomes_a_drafter(trunk, folder):
    drafter = loaded(trunk, folder)
    assert isinstance(drafter, DFlash)
    assert (drafter.longest, drafter.trained, drafter.taps) == (15, 7, (0, 1))


def test_ngram_needs_no_files(trunk):
    assert isinstance(loaded(trunk, "ngram"), NGram)


def test_nothing_asked_for_is_nothing(trunk):
    assert loaded(trunk, None) is None
    assert loaded(trunk, "auto") is None


@pytest.mark.parametrize("second", [True, False])
def test_a_gguf_says_what_the_folder_says(trunk, tmp_path, second):
    layers = ["sliding_attention"] * 2 if second else ["sliding_attention", "full_attention"]
    config = dflash_config(trunk.config, second, layer_types=layers, is_causal=False, rms_norm_eps=2.0**-20)
    hf = loaded(trunk, write_dflash(tmp_path / "hf", config))
    gguf = loaded(trunk, write_dflash_gguf(tmp_path / "d.gguf", config))
    assert gguf.model.config == hf.model.config
    assert proposals(trunk, gguf) == proposals(trunk, hf)


@pytest.mark.parametrize("format", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_weights_stay_in_their_stored_format(trunk, tmp_path, format):
    config = dflash_config(trunk.config, num_attention_heads=8, intermediate_size=64)
    arrays = dflash_arrays(config)
    rounded = {}
    for name, values in arrays.items():
        matrix = values.ndim == 2 and "codebook" not in name and "hidden_projection" not in name
        rounded[name] = quant.decode(quant.encode(values, format)) if matrix else values
    stored = loaded(trunk, write_dflash_gguf(tmp_path / "d.gguf", config, arrays, format))
    assert stored.model.reading.fc[0][0].tensor.format == format
    assert proposals(trunk, stored) == proposals(trunk, loaded(trunk, write_dflash(tmp_path / "f", config, rounded)))


def test_half_precision_safetensors_are_read(trunk, tmp_path):
    config = dflash_config(trunk.config)
    arrays = {name: values.astype(np.float16) for name, values in dflash_arrays(config).items()}
    wide = {name: values.astype(np.float32) for name, values in arrays.items()}
    half = loaded(trunk, write_dflash(tmp_path / "half", config, arrays))
    assert proposals(trunk, half) == proposals(trunk, loaded(trunk, write_dflash(tmp_path / "wide", config, wide)))


def test_muse_glimmer_names_are_known(trunk, tmp_path):
    config = dflash_config(trunk.config)
    new = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    arrays = {new.get(name, name): values for name, values in dflash_arrays(config).items()}
    muse = loaded(trunk, write_dflash(tmp_path / "muse", config, arrays))
    assert proposals(trunk, muse) == proposals(trunk, loaded(trunk, write_dflash(tmp_path / "plain", config)))


def test_a_drafter_inside_the_models_gguf(tmp_path, trunk):
    config, inner = dflash_config(trunk.config), tmp_path / "d.gguf"
    write_dflash_gguf(inner, config)
    drafter, model = turbospark.draft.find.open_checkpoint(inner), trunk.checkpoint
    values = lambda checkpoint, name: quant.decode(checkpoint.open(name))
    tensors = {name: values(model, name) for name in model.tensors}
    tensors |= {f"dflash.{name}": values(drafter, name) for name in drafter.tensors}
    metadata = {**{k: drafter.metadata[k] for k in drafter.metadata}, **{k: model.metadata[k] for k in model.metadata}}
    both = turbospark.load(write_gguf(tmp_path / "both.gguf", metadata, tensors), "reference", slots=2, chunk=32)
    assert proposals(both, loaded(both, "dflash")) == proposals(trunk, loaded(trunk, inner))
    assert isinstance(loaded(both, "auto"), DFlash)


def test_a_drafter_inside_the_models_folder(tmp_path, deepseek):
    config = dflash_config(deepseek.config)
    folder = tmp_path / "both"
    shutil.copytree(deepseek.checkpoint.path, folder)
    declared = json.loads((folder / "config.json").read_text())
    values = lambda name: np.ascontiguousarray(quant.decode(deepseek.checkpoint.open(name)))
    arrays = {name: values(name) for name in deepseek.checkpoint.tensors}
    arrays |= {f"dflash.{name}": array for name, array in dflash_arrays(config).items()}
    write_dflash(folder, {**declared, "drafter": config}, arrays)
    both = turbospark.load(folder, "reference", slots=2, chunk=32)
    alone = loaded(deepseek, write_dflash(tmp_path / "alone", config))
    assert proposals(both, loaded(both, "dflash")) == proposals(deepseek, alone)
    # with an MTP head there too, auto takes DFlash
    assert (loaded(both, "auto").name, loaded(both, "mtp").name) == ("dflash", "mtp")
    write_dflash(folder, declared, arrays)
    with pytest.raises(TurbosparkError, match=r"drafter is missing"):
        loaded(both := turbospark.load(folder, "reference", slots=1), "dflash")
    assert loaded(both, "auto").name == "mtp"


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    return turbospark.load(write_trunk(tmp_path_factory.mktemp("trunk"), "deepseek2"), "reference", slots=2, chunk=32)


@pytest.mark.parametrize(
    "name",
    ["llama-DFlash2", "llama.dflash.gguf", "dflash", "llama-dflash-b16", "Llama.DFlash.Q8_0.gguf", "dflash.gguf"],
)
def test_a_drafter_beside_the_model_is_found_by_its_name(tmp_path, name, trunk):
    lm = turbospark.load(write_llama(tmp_path / "llama.Q4_1.gguf"), "reference", slots=2)
    write = write_dflash_gguf if name.endswith(".gguf") else write_dflash
    write(tmp_path / name, dflash_config(trunk.config))
    assert find.beside(lm.checkpoint.path) == [tmp_path / name]
    assert isinstance(loaded(lm, "auto"), DFlash)


def test_drafters_of_other_models_beside_it_are_not_taken(tmp_path, trunk):
    path = write_llama(tmp_path / "llama.gguf")
    for name in ("other-DFlash2", "llama3-DFlash", "llam-dflash"):
        write_dflash(tmp_path / name, dflash_config(trunk.config))
    (tmp_path / "llama-dflash-notes").mkdir()
    (tmp_path / "llama-dflash.txt").write_text("")
    assert find.beside(path) == []


def test_the_closest_name_comes_first_and_dflash2_before_dflash(tmp_path, trunk):
    path = write_llama(tmp_path / "llama-1b.gguf")
    for name in ("llama-DFlash2", "llama-1b-DFlash", "llama-1b-DFlash2"):
        write_dflash(tmp_path / name, dflash_config(trunk.config))
    assert [p.name for p in find.beside(path)] == ["llama-1b-DFlash2", "llama-1b-DFlash", "llama-DFlash2"]


def test_auto_passes_over_what_cannot_be_opened_and_dflash_refuses_it(tmp_path):
    lm = turbospark.load(write_llama(tmp_path / "llama.gguf"), "reference", slots=2)
    (tmp_path / "llama-DFlash2.gguf").write_bytes(b"")
    notes = []
    assert loaded(lm, "auto", note=notes.append) is None
    assert notes == [f"passed over: {tmp_path / 'llama-DFlash2.gguf'} is empty"]
    with pytest.raises(TurbosparkError, match="is empty"):
        loaded(lm, "dflash")


def test_a_folder_that_may_not_be_listed_holds_no_drafter_to_find(tmp_path, monkeypatch):
    path = write_llama(tmp_path / "llama.gguf")

    def closed(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(type(tmp_path), "iterdir", closed)
    assert find.beside(path) == []


def test_auto_passes_over_what_does_not_fit_and_says_so(tmp_path, trunk):
    lm = turbospark.load(write_llama(tmp_path / "llama.gguf"), "reference", slots=2)
    write_dflash(tmp_path / "llama-DFlash2", dflash_config(trunk.config, vocab_size=99))
    notes = []
    assert loaded(lm, "auto", note=notes.append) is None
    assert "99" in notes[0]
    with pytest.raises(TurbosparkError, match=r"vocabulary is 99, the model's is 11"):
        loaded(lm, "dflash")


def test_a_shipped_drafter_is_found_by_the_fingerprint_it_records(tmp_path, trunk, monkeypatch):
    monkeypatch.setattr(find, "SHIPPED", tmp_path)
    own = fingerprint(trunk.config, trunk.checkpoint, trunk.checkpoint.kind)
    write_dflash(tmp_path / "a", dflash_config(trunk.config, trunk_fingerprint="llama-1x2-3-0"))
    assert loaded(trunk, "auto") is None
    write_dflash_gguf(tmp_path / "b.gguf", dflash_config(trunk.config), **{"dflash.trunk_fingerprint": own})
    assert loaded(trunk, "auto").model.config.trunk == own
    (tmp_path / "b.gguf").unlink()
    write_dflash(tmp_path / "c", dflash_config(trunk.config, trunk_fingerprint=own))
    assert loaded(trunk, "dflash").model.config.trunk == own


def test_the_package_ships_only_drafters_that_record_their_trunk():
    for path in find.SHIPPED.glob("*"):
        assert find.recorded(path), path


def test_a_fingerprint_is_the_same_in_every_number_format(tmp_path):
    marks = set()
    arrays = llama_arrays(llama_config())
    metadata = turbospark.formats.open_checkpoint(write_llama(tmp_path / "m.gguf", vocab=61)).metadata
    for format in ("F32", "F16", "Q8_0"):
        tensors = {name: (format, a) if a.ndim == 2 and a.shape[1] == 32 else a for name, a in arrays.items()}
        path = write_gguf(tmp_path / f"{format}.gguf", {k: metadata[k] for k in metadata}, tensors)
        lm = turbospark.load(path, "reference", slots=1)
        marks.add(fingerprint(lm.config, lm.checkpoint, "gguf"))
    assert len(marks) == 1
    assert marks.pop().startswith("llama-32x2-61-")
    arrays["output_norm.weight"] = arrays["output_norm.weight"] * np.float32(1.02)
    other = turbospark.load(write_gguf(path, {k: metadata[k] for k in metadata}, arrays), "reference", slots=1)
    assert fingerprint(other.config, other.checkpoint, "gguf") not in marks


def reduced_and_full(tmp_path, trunk, ids: np.ndarray, **declared) -> tuple:
    config = dflash_config(trunk.config, draft_vocab_size=len(ids), **declared)
    arrays = dflash_arrays(config)
    offsets, mask = ids - np.arange(len(ids)), np.isin(np.arange(VOCAB), ids)
    reduced = loaded(trunk, write_dflash(tmp_path / "r", config, {**arrays, "d2t": offsets, "t2d": mask}))
    return reduced, loaded(trunk, write_dflash(tmp_path / "f", dflash_config(trunk.config, **declared), arrays))


def test_a_reduced_vocabulary_has_candidates_of_its_own_with_the_heads_scores(tmp_path, trunk):
    ids = np.array([1, 3, 4, 9])
    reduced, full = reduced_and_full(tmp_path, trunk, ids)
    assert reduced.model.head.matrix.tensor.format == "Q4_0"
    hidden = np.random.default_rng(0).standard_normal((3, trunk.config.hidden)).astype(np.float32)
    found, logits = reduced.model.candidates(hidden), full.model.logits(hidden)
    wanted = ids[np.argsort(-logits[:, ids], axis=-1, kind="stable")][:, : reduced.model.count]
    np.testing.assert_array_equal(found.ids, wanted)
    np.testing.assert_allclose(found.unary, np.take_along_axis(logits, wanted, -1), rtol=1e-5)
    said = [token for round in proposals(trunk, reduced) for walk in round for token in walk]
    assert set(said) <= set(ids.tolist())
    assert len(set(said)) > 1


def test_a_mask_embedding_takes_the_place_of_the_mask_token(tmp_path, trunk):
    row = quant.decode(trunk.checkpoint.open("token_embd.weight"))[6]
    config = dflash_config(trunk.config, mask_token_id=6)
    token = proposals(trunk, loaded(trunk, write_dflash(tmp_path / "token", config)))
    # an id outside the vocabulary is no fault of a drafter that never embeds it
    config = dflash_config(trunk.config, mask_token_id=VOCAB)
    folder = write_dflash(tmp_path / "vector", config)
    for stored in (torch.tensor(row), {"mask_token_id": VOCAB, "embedding": torch.tensor(row)[None]}):
        torch.save(stored, folder / "mask_embedding.pt")
        assert proposals(trunk, loaded(trunk, folder)) == token
    torch.save(torch.tensor(row) * 3 + 1, folder / "mask_embedding.pt")
    assert proposals(trunk, loaded(trunk, folder)) != token


def test_a_path_that_is_not_there_and_a_file_that_is_no_drafter(tmp_path, trunk):
    with pytest.raises(TurbosparkError, match=r"nowhere.*auto, dflash, mtp, ngram"):
        loaded(trunk, "nowhere")
    with pytest.raises(TurbosparkError, match=r"llama\.gguf is no drafter"):
        loaded(trunk, write_llama(tmp_path / "llama.gguf"))


@pytest.mark.parametrize(("kind", "tensor"), [("dflash", "dflash.fc.weight"), ("mtp", "mtp.fc.weight")])
def test_a_kind_that_is_not_there_names_the_tensor_that_is_missing(trunk, kind, tensor):
    with pytest.raises(TurbosparkError, match=tensor) as error:
        loaded(trunk, kind)
    assert error.value.code == "no_drafter"


def test_blocker_says_what_loading_raises(tmp_path, trunk):
    good = find.opened(write_dflash(tmp_path / "good", dflash_config(trunk.config)), trunk.config)
    assert blocker(good, trunk.engine.model, trunk.checkpoint) is None
    path = write_dflash(tmp_path / "bad", dflash_config(trunk.config, hidden_size=36))
    reason = blocker(find.opened(path, trunk.config), trunk.engine.model, trunk.checkpoint)
    with pytest.raises(TurbosparkError) as error:
        loaded(trunk, path)
    assert error.value.message == reason == "drafter bad: the drafter's hidden size is 36, the model's is 32"
