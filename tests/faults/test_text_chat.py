"""Fault 58: chat templates that raise, are missing, or are hostile, and messages of every shape."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.tokenizers import CHAT, byte_tokenizer_metadata
from turbospark.errors import TurbosparkError
from turbospark.tokenizer.chat import ChatTemplate
from turbospark.tokenizer.from_gguf import from_gguf

USER = [{"role": "user", "content": "hi"}]
PARTS = [{"type": "text", "text": "a b"}, {"type": "text", "text": " c"}]


def refused(source: str, messages: Any = USER, **options: Any) -> TurbosparkError:
    with pytest.raises(TurbosparkError) as error:
        ChatTemplate(source).render(messages, **options)
    return error.value


def test_the_templates_own_words_are_passed_on() -> None:
    error = refused("{{ raise_exception('Conversation roles must alternate') }}")
    assert error.code == "chat_template_error"
    assert "Conversation roles must alternate" in error.message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].name.first }}", "has no attribute 'name'"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ messages | nofilter }}", "nofilter"),
        ("{% include 'other' %}", "other|loader"),
    ],
)
def test_a_template_that_fails_in_any_way_is_one_error(source: str, words: str) -> None:
    error = refused(source)
    assert error.code == "chat_template_error"
    assert re.search(words, error.message)


def test_no_template_is_an_error_with_a_way_out() -> None:
    tokenizer = from_gguf(byte_tokenizer_metadata(template=None))
    assert not tokenizer.has_chat_template
    with pytest.raises(TurbosparkError, match="no chat template") as error:
        tokenizer.chat(USER)
    assert error.value.code == "no_chat_template"
    assert "--raw" in error.value.hint


def test_parts_and_null_become_text_where_the_template_wants_text() -> None:
    messages = [{"role": "user", "content": PARTS}, {"role": "assistant", "content": None}, {"role": "user"}]
    as_text = [{"role": "user", "content": "a b c"}, *({"role": role, "content": ""} for role in ("assistant", "user"))]
    assert ChatTemplate(CHAT).render(messages) == ChatTemplate(CHAT).render(as_text)


def test_parts_stay_parts_where_the_template_reads_them() -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    assert ChatTemplate(source).render([{"role": "user", "content": PARTS}]) == "[a b][ c]"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content }}", "{{ messages | tojson }}", "{{ messages[0].content | string }}"]
)
def test_a_list_is_never_printed_as_the_text_of_a_message(source: str) -> None:
    text = ChatTemplate(source).render([{"role": "user", "content": PARTS[:1]}])
    assert "a b" in text
    assert "'text'" not in text
    assert '"text"' not in text


def test_other_roles_are_the_templates_business() -> None:
    assert "<|im_start|>critic\nno<|im_end|>" in ChatTemplate(CHAT).render([{"role": "critic", "content": "no"}])
    only_user = (
        "{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users') }}{% endif %}{% endfor %}"
    )
    assert "only users" in refused(only_user, [{"role": "critic", "content": "no"}]).message


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least 1 message, has 0"),
        ("hi", "must be a list, has type str"),
        ({"role": "user"}, "must be a list, has type dict"),
        (None, "must be a list, has type NoneType"),
        ([*USER, "hi"], "message 1 of 2 must be a dict, has type str"),
        ([{"content": "hi"}], "message 0 of 1 must have a role, has None"),
        ([{"role": 1, "content": "hi"}], "message 0 of 1 must have a role, has 1"),
        ([{"role": "user", "content": 3}], "content of message 0 of 1 .* has type int"),
        ([{"role": "user", "content": ["hi"]}], "part 0 of message 0 of 1 .* has 'str'"),
        ([{"role": "user", "content": [*PARTS, {"type": "image_url"}]}], "part 2 of message 0 of 1 .* has 'image_url'"),
        ([{"role": "user", "content": "hi", "file": Path()}], "message 0 of 1 holds a PosixPath"),
    ],
)
def test_messages_of_the_wrong_shape_are_named(messages: Any, words: str) -> None:
    error = refused(CHAT, messages)
    assert error.code == "bad_messages"
    assert re.search(words, error.message), error.message


def test_what_a_template_would_ignore_is_refused() -> None:
    called = [*USER, {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}]
    for error in (
        refused(CHAT, tools=[{"name": "add"}]),
        refused(CHAT, enable_thinking=False),
        refused(CHAT, called),
    ):
        assert error.code == "chat_option_unknown"
        assert "messages" in error.hint
    assert ChatTemplate(CHAT).render(USER, tools=[]) == ChatTemplate(CHAT).render(USER, tools=None)


GROW = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}{{ ns.x%s }}"
HOSTILE = {
    "reaches out": [
        "{{ ''.__class__ }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages[0]['__class__'] }}{{ messages[0].__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 'x' | attr('__class__') }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ raise_exception.__globals__ }}",
    ],
    "changes its input": ["{{ messages.append(1) }}", "{{ messages[0].update(role='x') }}", "{{ messages.clear() }}"],
    "runs on": [
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ 10 ** 1000000 }}",
        "{{ ['a'] | slice(10 ** 9) | list }}",
    ],
    "grows": [
        "{{ 'a' * 10 ** 10 }}",
        "{{ [0] * 10 ** 10 }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ '\t'.expandtabs(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
        GROW % ("'aa'", "ns.x ~ ns.x", ""),
        GROW % ("'aa'", "ns.x + ns.x", ""),
        GROW % ("'aa'", "ns.x.replace('a', ns.x)", ""),
        GROW % ("'aa'", "ns.x | replace('a', ns.x)", ""),
        GROW % ("'aa'", "[ns.x, ns.x] | join", ""),
        GROW % ("'aa'", "''.join([ns.x, ns.x])", ""),
        GROW % ("'aa'", "'%s%s' % (ns.x, ns.x)", ""),
        GROW % ("'aa'", "'{0}{0}'.format(ns.x)", ""),
        GROW % ("[1]", "[ns.x, ns.x]", ""),
        GROW % ("[1]", "[ns.x, ns.x]", " | tojson"),
        GROW % ("[1]", "[ns.x, ns.x]", " | string"),
        GROW % ("[1]", "ns.x + ns.x", ""),
        GROW % ("3", "ns.x * ns.x", ""),
    ],
}


@pytest.mark.parametrize("source", [source for sources in HOSTILE.values() for source in sources])
def test_a_hostile_template_ends_in_an_error(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert refused(source, messages).code == "chat_template_error"
    assert messages == [{"role": "user", "content": "hi"}]


def test_a_growing_template_is_stopped_before_it_has_grown() -> None:
    for source in HOSTILE["grows"]:
        tracemalloc.start()
        try:
            refused(source)
            assert tracemalloc.get_traced_memory()[1] < 500_000_000, source
        finally:
            tracemalloc.stop()
