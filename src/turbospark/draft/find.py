"""Where drafters are looked for: inside the model's own file, beside it, and among those shipped with the package."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from turbospark.config.model import ModelConfig
from turbospark.draft import dflash_config, dflash_gguf, dflash_published, mtp_names
from turbospark.draft.dflash_names import PREFIX
from turbospark.draft.fingerprint import fingerprint
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.formats.checkpoint import Checkpoint
from turbospark.formats.json_file import read_object

SHIPPED = Path(__file__).parents[1] / "drafters"
FUSE = ("fc.weight", "encoder.fc.weight")  # a DFlash drafter has one of them
LACKS = {
    "dflash": "there is no tensor dflash.fc.weight in it, no NAME-DFlash2 beside it, and none is shipped",
    "mtp": "there is no tensor mtp.fc.weight, nextn.eh_proj.weight or eh_proj.weight in it",
}


@dataclass(frozen=True)
class Found:
    """A drafter's files. kind: "dflash" or "mtp". prefix: what comes before the tensors' names there."""

    kind: str
    checkpoint: Checkpoint
    prefix: str = ""

    @property
    def path(self) -> Path:
        return self.checkpoint.path


def search(
    kind: str, trunk: Checkpoint, config: ModelConfig, unread: Callable[[TurbosparkError], None]
) -> Iterator[Found]:
    """The drafters of a kind that a model comes with, the nearest first. unread: told why one cannot be opened."""
    given = added(trunk)
    if given is not None and given.kind == kind:
        yield given
    if kind == "mtp":
        if mtp_names.present(trunk, config):
            yield Found("mtp", trunk)
        return
    if _has_fuse(trunk, PREFIX):
        yield Found("dflash", trunk, PREFIX)
    for path in [*beside(trunk.path), *shipped(trunk, config)]:
        try:
            checkpoint = open_checkpoint(path)
        except TurbosparkError as error:
            unread(error)
        else:
            yield Found("dflash", checkpoint)


def opened(path: Path, config: ModelConfig) -> Found:
    """The drafter in a file or folder that the user named. Raises `no_drafter` when there is none in it."""
    checkpoint = open_checkpoint(path)
    if _has_fuse(checkpoint):
        return Found("dflash", checkpoint)
    if _has_fuse(checkpoint, PREFIX):
        return Found("dflash", checkpoint, PREFIX)
    if mtp_names.present(checkpoint, config):
        return Found("mtp", checkpoint)
    if (given := added(checkpoint)) is not None:
        return given
    message = f"{path} is no drafter: it has no tensor fc.weight (DFlash), mtp.fc.weight or nextn.eh_proj.weight (MTP)"
    raise TurbosparkError("no_drafter", message, "name a DFlash folder, or a GGUF file of architecture dflash")


def added(install: Checkpoint) -> Found | None:
    """The drafter that was added to an install, None for none."""
    drafter = install.drafter
    return None if drafter is None else Found("dflash" if _has_fuse(drafter) else "mtp", drafter)


def beside(model: Path) -> list[Path]:
    """Folders and GGUF files called after the model with "dflash" behind, such as NAME-DFlash2; the closest first.

    A drafter without a name before "dflash" counts in the folder of a GGUF file, or inside a model's folder.
    """
    found = []
    for folder in (model.parent, model):
        try:
            entries = sorted(folder.iterdir(), reverse=True)  # dflash2 before dflash
        except OSError:  # a file, or a folder that may be opened and not listed
            continue
        anonymous = folder == model or not model.is_dir()
        for entry in entries:
            name, word, _ = entry.name.lower().partition("dflash")
            name = name.rstrip("-_. ")
            rest = model.name.lower().removeprefix(name)
            named = model.name.lower().startswith(name) and not rest[:1].isalnum() if name else anonymous
            drafter = entry.suffix == ".gguf" if os.path.isfile(entry) else os.path.exists(entry / "config.json")
            if word and named and drafter and entry != model:
                found.append((len(name), entry))
    return [entry for _, entry in sorted(found, key=lambda pair: -pair[0])]


def shipped(trunk: Checkpoint, config: ModelConfig, folder: Path | None = None) -> list[Path]:
    """The package's own drafters whose recorded `trunk_fingerprint` is this model's."""
    entries = {path: recorded(path) for path in sorted((folder or SHIPPED).glob("*"))}
    if not any(entries.values()):
        return []
    own = fingerprint(config, trunk, trunk.kind)
    return [path for path, told in entries.items() if told == own]


def recorded(path: Path) -> str | None:
    """The fingerprint in a drafter's config.json or GGUF header; None for what is no drafter."""
    if (path / "config.json").exists():
        return read_object(path / "config.json").get("trunk_fingerprint")
    return open_checkpoint(path).metadata.get("dflash.trunk_fingerprint") if path.suffix == ".gguf" else None


def declared(found: Found) -> dflash_config.DFlashConfig:
    """The configuration of a DFlash drafter; inside a model's folder, `drafter` of its config.json; inside an install
    that declares nothing, the published one."""
    checkpoint, where = found.checkpoint, found.path.name
    if checkpoint.kind == "gguf":
        return dflash_gguf.from_gguf(checkpoint.metadata, checkpoint.tensors, where)
    if checkpoint.kind == "install":
        return dflash_published.of_trunk(checkpoint.metadata, where)
    if not found.prefix:
        return dflash_config.from_hf(checkpoint.metadata, f"{where}/config.json")
    inner = checkpoint.metadata.get("drafter")
    if not isinstance(inner, dict):
        raise TurbosparkError(
            "missing_key", f"{where}/config.json: drafter is missing, the config of {PREFIX}fc.weight"
        )
    return dflash_config.from_hf(inner, f"{where}/config.json: drafter")


def _has_fuse(checkpoint: Checkpoint, prefix: str = "") -> bool:
    return any(prefix + model + name in checkpoint.tensors for model in ("", "model.") for name in FUSE)
