"""Chat templates: messages to one prompt, through sandboxed Jinja2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ChatTemplate:
    """source: the template's text; tokens: the names it may use, such as `bos_token`, with their texts."""

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> str:
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        template = environment.from_string(self.source)
        return template.render(
            messages=list(messages),
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **self.tokens,
            **kwargs,
        )
