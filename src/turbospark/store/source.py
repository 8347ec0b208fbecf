"""A source that is to become an install: opened, checked to run, and sorted into what is kept and what is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from turbospark.config.model import ModelConfig
from turbospark.config.registry import read_config
from turbospark.draft import find, mtp_names
from turbospark.draft.dflash_names import PREFIX as DFLASH
from turbospark.draft.find import Found
from turbospark.draft.load import MASK_FILE, blocker
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.formats.checkpoint import Checkpoint, TensorInfo
from turbospark.formats.install_names import DRAFTER_CONFIG, DRAFTER_GGUF, GGUF_HEADER, HF_CONFIG
from turbospark.kernels.api import Kernels
from turbospark.kernels.headers import HeaderKernels
from turbospark.models.base import DERIVED, Model
from turbospark.models.registry import model_class
from turbospark.store.header import declarations
from turbospark.tokenizer import load_tokenizer

MTP = "mtp."
# files of a folder that say how texts become ids and back, and how answers are drawn
TEXT_FILES = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"),
)


@dataclass(frozen=True)
class Source:
    """tensors: what is kept, an added drafter's under names of the install. left_out: what no text model reads.

    small: files that are written as they are. drafter: the manifest's block, None without an added one.
    """

    checkpoint: Checkpoint
    config: ModelConfig
    tensors: tuple[TensorInfo, ...]
    left_out: tuple[TensorInfo, ...]
    small: Mapping[str, bytes]
    drafter: Mapping[str, str] | None
    files: tuple[Path, ...]

    @property
    def name(self) -> str:
        """What the source calls itself."""
        checkpoint = self.checkpoint
        told = (checkpoint.manifest or {}).get("modelID") or checkpoint.metadata.get("general.name")
        return told if isinstance(told, str) else checkpoint.path.resolve().name


def open_source(path: Path, drafter: Path | None) -> Source:
    """Opens a GGUF, a folder or an install, and builds the model from its headers: what would not run is refused now.

    Raises what opening and building raise, `unsupported_source`, and for the drafter what loading one raises.
    """
    checkpoint = open_checkpoint(path)
    if checkpoint.kind == "install":
        message = f"{path} is an install that does not keep what its source declared"
        raise TurbosparkError("unsupported_source", message, "import the source itself")
    config = read_config(checkpoint)
    kernels = cast(Kernels, HeaderKernels())
    model = model_class(config.family)(config, checkpoint, checkpoint.kind, kernels, config.context)
    load_tokenizer(checkpoint)  # one that cannot be read is refused like any other part
    kept = {name: _kept(name, model) for name in checkpoint.tensors}
    tensors = [info for name, info in checkpoint.tensors.items() if kept[name]]
    left_out = tuple(info for name, info in checkpoint.tensors.items() if not kept[name])
    small = dict(_declarations(checkpoint))
    files, entry = list(checkpoint.files), None
    found = find.added(checkpoint) if drafter is None else find.opened(drafter, config)
    if found is not None:
        _check_drafter(found, model, checkpoint)
        entry, added = _drafter(found, len(config.layers))
        tensors += added
        small |= _drafter_files(found, config)
        files += found.checkpoint.files
    return Source(checkpoint, config, tuple(tensors), left_out, small, entry, tuple(files))


def _kept(name: str, model: Model) -> bool:
    """Everything the model reads, and heads and drafters; not images, nor what the configuration says already."""
    return name.startswith(mtp_names.QWEN_PREFIXES) or not (name.startswith(model.unused) or name.endswith(DERIVED))


def _declarations(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    if checkpoint.kind == "gguf":
        yield GGUF_HEADER, declarations(_header_of(checkpoint))
        return
    for name in (HF_CONFIG, *TEXT_FILES):
        if (checkpoint.path / name).exists():
            yield name, _read(checkpoint.path / name)


def _header_of(checkpoint: Checkpoint) -> Path:
    """The file with a GGUF's declarations: its first part, or what an install keeps of it or of its drafter."""
    if not checkpoint.path.is_dir():
        return checkpoint.files[0]
    return checkpoint.path / (DRAFTER_GGUF if checkpoint.manifest is None else GGUF_HEADER)


def _check_drafter(found: Found, model: Model, trunk: Checkpoint) -> None:
    problem = blocker(found, model, trunk)
    if problem is not None:
        raise TurbosparkError("drafter_unfit", problem, "an install holds a drafter that fits, or none")
    own = any(name.startswith(DFLASH) for name in trunk.tensors)
    if own if found.kind == "dflash" else mtp_names.present(trunk, model.config):
        message = f"{trunk.path} has a {found.kind} drafter among its own tensors"
        raise TurbosparkError("drafter_unfit", message, "import it without --drafter")


def _drafter(found: Found, layers: int) -> tuple[dict[str, str], list[TensorInfo]]:
    """The manifest's block, and the drafter's tensors under their names in the install."""
    checkpoint = found.checkpoint
    if found.kind == "dflash":
        prefix, original, named = DFLASH, "", [n for n in checkpoint.tensors if n.startswith(found.prefix)]
    else:
        prefix, named = MTP, [name for name in checkpoint.tensors if mtp_names.belongs(name, layers)]
        original = MTP if all(name.startswith(MTP) for name in named) else ""
    here = {name: prefix + name.removeprefix(found.prefix or original) for name in named}
    infos = [checkpoint.tensors[name]._replace(name=new) for name, new in here.items()]
    return {"kind": checkpoint.kind, "prefix": prefix, "original": original}, infos


def _drafter_files(found: Found, config: ModelConfig) -> dict[str, bytes]:
    """Its declarations, and the embedding of its mask rows where it brings one."""
    checkpoint, declared = found.checkpoint, found.checkpoint.metadata
    if checkpoint.kind == "gguf":
        # a head alone has no embedding table, by which a file's vocabulary is known
        key = f"{declared.get('general.architecture')}.vocab_size"
        added = {key: config.vocab} if found.kind == "mtp" and key not in declared else {}
        return {DRAFTER_GGUF: declarations(_header_of(checkpoint), added)}
    inner = declared["drafter"] if found.prefix else declared
    mask = found.path / MASK_FILE
    files = {DRAFTER_CONFIG: json.dumps(inner, indent=1).encode() + b"\n"}
    return files | ({MASK_FILE: _read(mask)} if not found.prefix and mask.exists() else {})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TurbosparkError("file_unreadable", f"{path} cannot be read: {error.strerror}") from None
