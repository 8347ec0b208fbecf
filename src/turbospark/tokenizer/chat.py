"""Chat templates: messages to one prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from turbospark.errors import TurbosparkError

PROBE = "text of a part"
RAW_HINT = "a prompt can also be given as one string, a raw completion (--raw)"


@dataclass(frozen=True)
class ChatTemplate:
    """A model's template, in Jinja2.

    tokens: names that it may use, such as `bos_token` -> their texts. tool_source: the template for conversations
    with tools, where the model has one of its own.
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)
    tool_source: str | None = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """The conversation as the model was trained to read it.

        messages: dicts with a role and, as a rule, content: text, a list of text parts, or None. What a template
        cannot take is rewritten for it: parts are joined, None becomes "" (it stays None beside tool calls where the
        template looks for it). options: names that the template itself reads, such as `enable_thinking`.

        Raises `bad_messages`, `chat_option_unknown` for tools, tool calls and options that the template does not
        read, `chat_template_error` with the template's own words.
        """
        source = self.tool_source if tools and self.tool_source else self.source
        plain = checked_messages(messages)
        names = _names(source)
        asked = [*options, *(["tools"] if tools else [])]
        if unknown := [name for name in asked if name not in names]:
            raise _not_read(repr(unknown[0]), names)
        if "tool_calls" not in source and any(message.get("tool_calls") for message in plain):
            raise _not_read("the messages' tool_calls", names)
        variables = {
            **self.tokens,
            "documents": None,
            **_plain(options, "an option"),
            "messages": [_fitted(source, message) for message in plain],
            "tools": _plain(list(tools), "a tool") if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        return _render(source, variables)


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as plain dicts, keys with the value None dropped except content. Raises `bad_messages`."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise _bad(f"messages must be a list, has type {type(messages).__name__}")
    if not messages:
        raise _bad("messages must hold at least 1 message, has 0")
    return [_checked(f"message {index} of {len(messages)}", message) for index, message in enumerate(messages)]


def _checked(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _bad(f"{where} must be a dict, has type {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise _bad(f"{where} must have a role, has {role!r}")
    if not isinstance(content, str | list | tuple | None):
        raise _bad(f"the content of {where} must be text, a list of parts or null, has type {type(content).__name__}")
    for number, part in enumerate(content if isinstance(content, list | tuple) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise _bad(f"part {number} of {where} must have type 'text' and a text, has {kind!r}")
    kept = {key: value for key, value in message.items() if value is not None}
    return {"content": None, **_plain(kept, where)}


def _fitted(source: str, message: dict[str, Any]) -> dict[str, Any]:
    """The message with content that the template can take."""
    content = message["content"]
    if content is None and not (message.get("tool_calls") and _tests_for_none(source)):
        return message | {"content": ""}
    if isinstance(content, list) and not _takes_parts(source, message["role"]):
        return message | {"content": "".join(part["text"] for part in content)}
    return message


def _tests_for_none(source: str) -> bool:
    return re.search(r"content['\"\])]*\s*(is\s+(not\s+)?|[!=]=\s*)none\b", source, re.IGNORECASE) is not None


@lru_cache(maxsize=64)
def _takes_parts(source: str, role: str) -> bool:
    """Whether the template writes a part's text, rather than fail or write the list as Python or JSON has it."""
    message = {"role": role, "content": [{"type": "text", "text": PROBE}]}
    user = {"role": "user", "content": PROBE.upper()}
    messages = [message] if role == "user" else [message, user] if role == "system" else [user, message]
    try:
        text = _render(source, {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True})
    except TurbosparkError:
        return False
    return PROBE in text and "'type'" not in text and '"type"' not in text


def _names(source: str) -> frozenset[str]:
    """The names that a template reads from outside."""
    from jinja2 import TemplateError

    from turbospark.tokenizer.sandbox import compiled

    try:
        return compiled(source)[1]
    except (TemplateError, RecursionError, SyntaxError, MemoryError, ValueError) as error:
        raise _failed(error) from None


def _render(source: str, variables: dict[str, Any]) -> str:
    from turbospark.tokenizer.sandbox import compiled, render

    try:
        return render(compiled(source)[0], variables)
    except Exception as error:  # a template is a program: it may fail in any way
        raise _failed(error) from None


def _failed(error: Exception) -> TurbosparkError:
    from jinja2 import TemplateError

    words = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
    return TurbosparkError("chat_template_error", f"the model's chat template stopped: {words}", RAW_HINT)


def _bad(message: str) -> TurbosparkError:
    return TurbosparkError("bad_messages", message, 'a message looks like {"role": "user", "content": "Hello"}')


def _not_read(what: str, names: frozenset[str]) -> TurbosparkError:
    message = f"the model's chat template does not read {what}, so it would have no effect"
    return TurbosparkError("chat_option_unknown", message, "it reads: " + ", ".join(sorted(names)))


def _plain(value: Any, where: str) -> Any:
    """A copy made of JSON's own types alone, so that a template finds no methods but theirs."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where): _plain(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    raise _bad(f"{where} holds a {type(value).__name__}, which JSON does not have")
