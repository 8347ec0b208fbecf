"""Chat templates render as transformers renders them."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from tests.tokenizer.models import smollm2
from turbospark.formats import open_checkpoint
from turbospark.tokenizer import load_tokenizer
from turbospark.tokenizer.chat import ChatTemplate

# Turns as Gemma 3 writes them: the system message goes into the first user turn, texts are trimmed.
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] -%}
    {%- if system is not string -%}{%- set system = system[0]['text'] -%}{%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("user and assistant must take turns") }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
    {%- if loop.first and system -%}{{ system + '\\n\\n' }}{%- endif -%}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for part in message['content'] -%}{{ part['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""
# The constructs of templates with tools: macros, namespaces, JSON, slices, loop controls, tests, filters.
TOOLS = """{% macro call(item) %}<call>{{ item.name }}{{ item.arguments | tojson }}</call>{% endmacro %}
{% set ns = namespace(last=-1) %}
{% for m in messages[::-1] %}
    {% if m.role == 'user' and ns.last < 0 %}
        {% set ns.last = messages | length - 1 - loop.index0 %}
    {% endif %}
{% endfor %}
{% if tools %}
{{ tools | tojson(indent=2) }}
{{ tools | map(attribute='function.name') | join(', ') }}
{% endif %}
{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
<{{ m.role }}{{ ' last' if loop.index0 == ns.last }}>
    {% generation %}
    {% set content = m.content or '' %}
    {% if '</think>' in content %}
        {% set content = content.split('</think>')[-1].lstrip('\\n') %}
    {% endif %}
{{ content.strip() ~ '!' * loop.index }}
    {% for item in m.tool_calls or [] %}{{ call(item.function) }}{% endfor %}
    {% endgeneration %}
{% endfor %}
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
"""
TALK = [
    {"role": "user", "content": " Hi <b>there</b> & \u4f60\u597d\n"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]},
]
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"a": "\u00e9<1>", "b": [1, 2.5, None, True]}}}
CALLS = [
    {"role": "user", "content": "1+2?"},
    {
        "role": "assistant",
        "content": "<think>hm</think>\n so",
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "3"},
]


def transformers(template: str, messages: list[Any], **options: Any) -> str:
    return render_jinja_template([messages], chat_template=template, **options)[0][0]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("messages", [TALK[:1], TALK[:2], [SYSTEM, *TALK[:2]], TALK[1:2]])
def test_smollm2s_own_template(messages: list[Any], prompt: bool) -> None:
    ours = load_tokenizer(open_checkpoint(smollm2()))
    theirs = transformers(ours.template.source, messages, add_generation_prompt=prompt, **ours.template.tokens)
    assert ours.chat(messages, add_generation_prompt=prompt) == theirs
    assert ours.decode(ours.encode(theirs, special=False)) == theirs


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize(
    "messages", [TALK, [SYSTEM, *TALK], [{**SYSTEM, "content": [{"type": "text", "text": "x"}]}, *TALK]]
)
def test_turns_as_gemma_writes_them(messages: list[Any], prompt: bool) -> None:
    ours = ChatTemplate(GEMMA, {"bos_token": "<bos>"}).render(messages, add_generation_prompt=prompt)
    assert ours == transformers(GEMMA, messages, add_generation_prompt=prompt, bos_token="<bos>")
    assert ours.startswith("<bos><start_of_turn>user\n")
    assert "onetwo<end_of_turn>" in ours


@pytest.mark.parametrize("options", [{}, {"tools": [TOOL]}, {"enable_thinking": False}, {"enable_thinking": True}])
@pytest.mark.parametrize("messages", [CALLS, [SYSTEM, *CALLS], CALLS[:1]])
def test_what_templates_with_tools_are_made_of(messages: list[Any], options: dict[str, Any]) -> None:
    ours = ChatTemplate(TOOLS).render(messages, **options)
    assert ours == transformers(TOOLS, messages, add_generation_prompt=True, **options)
    assert ("\u00e9<1>" in ours) == ("tools" in options)


def test_a_call_without_content_keeps_its_null_where_the_template_looks_for_it() -> None:
    source = (
        "{% for m in messages %}{% if m['content'] is none %}calls {{ m.tool_calls[0].name }}"
        "{% else %}says {{ m['content'] }}.{% endif %}{% endfor %}"
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    assert ChatTemplate(source).render([call]) == "calls add"
    assert ChatTemplate(source).render([{"role": "user", "content": None}]) == "says ."
    plain = "{% for m in messages %}{{ m['content'] + m.tool_calls[0].name }}{% endfor %}"
    assert ChatTemplate(plain).render([call]) == "add"
