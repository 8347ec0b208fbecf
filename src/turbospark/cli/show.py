"""`info`, `probe` and `list`: what is known of models, as lines or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbospark.catalog import ALIASES, present, resolve
from turbospark.cli.output import note, plain
from turbospark.errors import TurbosparkError
from turbospark.formats.install_names import MANIFEST
from turbospark.store.home import installs, size_of
from turbospark.units import size

if TYPE_CHECKING:
    from turbospark.config.model import ModelConfig
    from turbospark.summary import Problem, Summary

OPENING = ("model_not_found", "file_missing", "file_unreadable", "hub_unreachable")  # nothing there to probe


def info(args: Any) -> int:
    from turbospark.placement import Asked
    from turbospark.summary import summarise

    if args.backend:
        return backend(args)
    if args.model is None:
        raise TurbosparkError("bad_arguments", "info needs a MODEL, or --backend", "turbospark info --help")
    asked = Asked(args.expert_residency, args.expert_cache_slots, args.memory, args.load_guard)
    summary = summarise(resolve(args.model, note), args.max_context, asked=asked)
    if args.json:
        _print_json(summary.as_json())
    else:
        _print_rows(plain(summary.path.name), _rows(summary))
    return 0 if summary.runs else 1


def backend(args: Any) -> int:
    """What computes on this machine."""
    from turbospark.kernels.cpu.about import about

    found = about()
    if args.json:
        _print_json(found)
        return 0
    ways: dict[str, list[str]] = {}
    for format, way in found["kernels"].items():
        ways.setdefault(way, []).append(format)
    rows = [("instructions", found["level"]), ("threads", str(found["threads"])), ("keys, values", found["cache"])]
    rows += [("kernels", f"{way}: {', '.join(formats)}") for way, formats in ways.items()]
    _print_rows(found["backend"], iter([*rows, ("compiled", found["compiled"] or "kept nowhere")]))
    return 0


def probe(args: Any) -> int:
    from turbospark.summary import Problem, summarise

    path = resolve(args.model, note)
    try:
        problems = summarise(path).problems
    except TurbosparkError as error:
        if error.code in OPENING:
            raise
        problems = (Problem(error.code, error.message, error.hint),)
    if args.json:
        _print_json({"path": str(path), "runs": not problems, "problems": [asdict(problem) for problem in problems]})
    elif problems:
        print(f"{plain(str(path))}: would not run")
        for problem in problems:
            print(f"  {_reason(problem)}")
    else:
        print(f"{plain(str(path))}: would run")
    return 1 if problems else 0


def aliases(args: Any) -> int:
    made = list(installs())
    # an install goes before an alias of the same name
    found = [(alias, present(alias)) for name, alias in sorted(ALIASES.items()) if name not in dict(made)]
    if args.json:
        _print_json(
            [_install_json(*install) for install in made]
            + [
                {
                    "name": alias.name,
                    "about": alias.about,
                    "present": path is not None,
                    "path": None if path is None else str(path),
                    "nbytes": alias.nbytes if path is None else path.stat().st_size,
                    "package": alias.distribution,
                    "repository": alias.repository,
                }
                for alias, path in found
            ]
        )
        return 0
    for name, folder in made:
        print(f"{name:<12}{plain(about_install(folder))}, {size(size_of(folder))}")
        print(" " * 12 + plain(str(folder)))
    for alias, path in found:
        print(f"{alias.name:<12}{alias.about}, {size(alias.nbytes if path is None else path.stat().st_size)}")
        absent = f"not here; `turbospark run {alias.name}` fetches it from huggingface.co/{alias.repository}"
        print(" " * 12 + (absent if path is None else str(path)))
    return 0


def about_install(folder: Path) -> str:
    """What its manifest says it was made of; nothing else of it is read."""
    from turbospark.formats.json_file import read_object

    try:
        model = read_object(folder / MANIFEST)["modelID"]
    except (TurbosparkError, KeyError):
        return "a damaged install (`turbospark verify` tells more)"
    return f"install of {model}"


def _install_json(name: str, folder: Path) -> dict[str, Any]:
    """As an alias is shown; it came from no package, and no repository is known."""
    here = {"present": True, "path": str(folder), "nbytes": size_of(folder)}
    return {"name": name, "about": about_install(folder), **here, "package": None, "repository": None}


def _rows(s: Summary) -> Iterator[tuple[str, str]]:
    yield "path", plain(str(s.path)) + (f" and {s.files - 1} more files" if s.files > 1 else "")
    kind = {"gguf": "GGUF", "hf": "Hugging Face folder", "install": "install"}[s.kind]
    kind = f"install of a {kind}" if s.install and s.kind != "install" else kind
    yield "format", f"{kind}, {s.files} file{'s' * (s.files != 1)}, {size(s.nbytes)} in {s.tensors} tensors"
    yield "family", (f"{s.config.family}, declared as " if s.config else "not known: ") + plain(s.architecture)
    if s.parameters is not None:
        billions = s.parameters >= 1e9
        yield "parameters", f"{s.parameters / 1e9:.2f} billion" if billions else f"{s.parameters / 1e6:.1f} million"
    if s.config is not None:
        c = s.config
        tied = ", output tied to the embedding" if c.tied else ""
        yield "geometry", f"hidden {c.hidden}, vocabulary {c.vocab}, context {c.context}{tied}"
        yield from (("layers", line) for line in _layers(c))
    for stored in s.formats:
        yield "quantisation", f"{stored.format:<8}{stored.tensors:>6} tensors {size(stored.nbytes):>10}"
    if s.footprint is not None:
        f = s.footprint
        experts = f" + {size(f.experts)} experts" if f.experts else ""
        sum_of = f"{size(f.weights)} weights{experts} + {size(f.cache)} cache + about {size(f.working)} to work"
        yield "memory", f"{sum_of} = {size(f.total)} at {f.context} positions"
        yield "memory", f"{size(s.memory.available)} of {size(s.memory.total)} may be used"
        if s.placement is not None:
            yield "memory", s.placement.why
    if s.drafter:
        yield "drafter", "one was added to it"
    if s.tokenizer is not None:
        yield "tokenizer", "yes" if s.tokenizer else "none: works on token ids alone"
    if s.tokenizer:
        yield "chat template", "yes" if s.chat_template else "no"
    for token in s.end_tokens or ():
        yield "end tokens", f"{token.id} {plain(token.text)}  ({', '.join(map(plain, token.sources))})"
    if s.config is not None and s.config.generation:
        settings = ", ".join(f"{name} {value}" for name, value in s.config.generation.items() if name in _SETTINGS)
        yield "sampling", plain(settings) or "no settings of its own"
    yield "would run", "yes" if s.runs else "no"
    yield from (("would run", _reason(problem)) for problem in s.problems)


_SETTINGS = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def _layers(config: ModelConfig) -> Iterator[str]:
    from turbospark.summary import groups

    for part in ("mixer", "ffn"):
        for kind, count in groups(getattr(layer, part) for layer in config.layers):
            yield f"{count} x {_DESCRIBE[type(kind).__name__](kind)}"


def _attention(a: Any) -> str:
    window = f", sliding window {a.window}" if a.window else ""
    gate = ", output gate" if a.gated else ""
    return f"attention, {a.heads} heads over {a.kv_heads} of width {a.head_dim}{_rope(a.rope)}{window}{gate}"


def _mla(a: Any) -> str:
    rank = f", query rank {a.q_rank}" if a.q_rank else ""
    return f"latent attention, {a.heads} heads, latent {a.latent} + {a.rope.dim}{rank}{_rope(a.rope)}"


def _delta(d: Any) -> str:
    return f"gated delta rule, {d.key_heads} key heads of {d.key_dim}, {d.value_heads} value heads of {d.value_dim}"


def _dense(f: Any) -> str:
    return f"feed-forward, width {f.width}, {f.activation}"


def _moe(m: Any) -> str:
    shared = f", shared expert of width {m.shared_width}" if m.shared_width else ""
    return f"mixture of {m.experts} experts of width {m.width}, {m.used} used{shared}"


def _rope(rope: Any) -> str:
    if rope is None:
        return ", no rotation"
    scaling = "" if rope.scaling is None else f" {rope.scaling.kind} x{rope.scaling.factor:g}"
    return f", rotation {rope.theta:g}{scaling}"


_DESCRIBE = {"Attention": _attention, "MLA": _mla, "GatedDelta": _delta, "Dense": _dense, "MoE": _moe}


def _reason(problem: Problem) -> str:
    return f"{plain(problem.message)} [{problem.code}]" + (f" ({plain(problem.hint)})" if problem.hint else "")


def _print_rows(title: str, rows: Iterator[tuple[str, str]]) -> None:
    print(title)
    last = ""
    for name, value in rows:
        print(f"  {'' if name == last else name:<15}{value}")
        last = name


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()
