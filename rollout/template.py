"""A model's chat template in token space: what text a conversation is, and what tokens that text is.

Text that users, tools and models wrote never turns into control tokens. Where such text spells one ("<|im_end|>" in a
tool's output), `BREAK` is put behind its first character before rendering; the rendered text is cut at the breaks and
the pieces are tokenized apart, so that no piece holds a whole control token that the template did not write itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, GenerationConfig

from envs.types import Message, ToolSpec
from rollout import tool_calls

BREAK = "\ufdd0"  # a Unicode noncharacter: never part of interchanged text
CACHED_PIECES = 16_384
CACHED_CHARS = 8_192  # longer pieces are tokenized each time

Turn = dict[str, Any]  # one message as a chat template sees it

_PROBE = "probe4c1d"
_PROBE_TOOL = ToolSpec(name="probe_tool_4c1d", description="d", parameters={"type": "object", "properties": {}})
# What a template raises when it does not know a role or a turn order: its own errors, or Python's on a missing field.
_TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, KeyError)


class ChatTemplate:
    """A tokenizer with its chat template, and what is particular about the template.

    `stop_ids` end a reply; `end_of_turn` is the token that the template itself writes after one (None where it writes
    none). `tool_format` names the markup of tool calls (see `rollout.tool_calls`).
    """

    def __init__(self, tokenizer: Any, extra_stop_ids: Iterable[int] = ()) -> None:
        """Raises `ValueError` for a tokenizer without a chat template, or whose template cannot render a chat."""
        self.tokenizer = tokenizer
        self._backend = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()
            self._backend.no_padding()
        name = getattr(tokenizer, "name_or_path", "") or "the model"
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(f"{name} has no chat template: use an instruction-tuned model, or give its tokenizer one")
        special = set(tokenizer.all_special_tokens)
        special |= {str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special}
        markup = {token for token in tokenizer.get_added_vocab() if token.strip()}
        self.control_ids = frozenset(i for t, i in tokenizer.get_added_vocab().items() if t.strip()) | frozenset(
            tokenizer.all_special_ids
        )
        self._special = _Breaker(special)
        self._control = _Breaker(special | markup)
        self._encode_piece = lru_cache(CACHED_PIECES)(self._encode_uncached)
        self._lead = self._find_lead()
        self._probe(name)
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        turn_end = [] if self.end_of_turn is None else [self.end_of_turn]
        self.stop_ids: tuple[int, ...] = tuple(sorted({*eos, *turn_end, *extra_stop_ids}))

    @classmethod
    def load(cls, path: str) -> ChatTemplate:
        """The template of the model at `path`, a folder or a hub id. Raises `ValueError`, one line, if it has none."""
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"no tokenizer at {path!r}: {str(error).strip().splitlines()[0]}") from error
        try:
            eos = GenerationConfig.from_pretrained(path).eos_token_id
        except OSError:  # the file is optional
            eos = None
        return cls(tokenizer, [] if eos is None else [eos] if isinstance(eos, int) else eos)

    def _probe(self, name: str) -> None:
        """Find out what the template can do by rendering short conversations with it."""
        user, reply = {"role": "user", "content": _PROBE}, {"role": "assistant", "content": f"{_PROBE}reply"}
        system = {"role": "system", "content": f"{_PROBE}system"}
        tool = {"role": "tool", "content": f"{_PROBE}tool", "name": "f", "tool_call_id": "call00000"}
        try:
            plain = self._apply([user], ())
            done = self._apply([user, reply], (), generation=False)
        except _TEMPLATE_ERRORS as error:
            raise ValueError(f"{name}: its chat template cannot render a conversation: {error}") from error
        tail = done.rpartition(f"{_PROBE}reply")[2]
        found = self._control.search(tail)
        self.end_of_turn: int | None = None if found is None else self.tokenizer.convert_tokens_to_ids(found)
        self._has_system = self._renders([system, user], f"{_PROBE}system")
        self._has_tool_role = self._renders([user, reply, tool], f"{_PROBE}tool")
        try:
            self._has_tools = self._apply([user], (_PROBE_TOOL,)) != plain
        except _TEMPLATE_ERRORS:
            self._has_tools = False
        declared = self.tokenizer.init_kwargs.get("tool_format")
        if declared is not None and declared not in tool_calls.FORMATS:
            raise ValueError(f"{name}: tool_format {declared!r} is none of {', '.join(tool_calls.FORMATS)}")
        self.tool_format: tool_calls.Format = declared or _detect_format(str(self.tokenizer.chat_template))
        # A template that names the pythonic format and no tools belongs to a model that was taught them otherwise.
        self._describe_tools = not self._has_tools and declared != "pythonic"

    def _renders(self, turns: list[Turn], needle: str) -> bool:
        try:
            return needle in self._apply(turns, ())
        except _TEMPLATE_ERRORS:
            return False

    def turn(self, message: Message) -> Turn:
        """`message` for `render`, its text made harmless. A message of the assistant keeps its tool-call markup."""
        content = message.content
        keep_markup = message.role == "assistant"
        turn: Turn = {"role": message.role, "content": self.neutral(content, keep_markup=keep_markup)}
        if message.role == "tool":
            turn |= {"name": message.name, "tool_call_id": message.tool_call_id}
        return turn

    def neutral(self, text: str, *, keep_markup: bool = False) -> str:
        """`text` with breaks inside whatever spells a control token; with `keep_markup`, only a special one."""
        return (self._special if keep_markup else self._control).apply(text)

    def render(self, turns: Sequence[Turn], tools: tuple[ToolSpec, ...] = ()) -> str:
        """The conversation as text, breaks included, up to where the assistant speaks next.

        Raises `ValueError` where the template refuses the conversation.
        """
        adapted = list(turns)
        if tools and self._describe_tools:
            adapted = _with_system(adapted, tool_calls.describe(self.tool_format, self._schemas(tools) or []))
        if not self._has_system:
            adapted = _fold_system(adapted)
        if not self._has_tool_role:
            adapted = _tools_as_user(adapted)
        try:
            return self._apply(adapted, tools if self._has_tools else ())
        except _TEMPLATE_ERRORS as error:
            raise ValueError(f"the chat template refuses this conversation: {error}") from error

    def _apply(self, turns: Sequence[Turn], tools: tuple[ToolSpec, ...], *, generation: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            list(turns), tools=self._schemas(tools), tokenize=False, add_generation_prompt=generation
        )

    def _schemas(self, tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]] | None:
        return [self._neutral_json(tool_calls.schema(tool)) for tool in tools] or None

    def _neutral_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.neutral(value)
        if isinstance(value, dict):
            return {key: self._neutral_json(item) for key, item in value.items()}
        return [self._neutral_json(item) for item in value] if isinstance(value, list) else value

    def encode(self, text: str, *, first: bool = True) -> list[int]:
        """Token ids of rendered text. `first` is False for a piece from the middle of a conversation."""
        ids: list[int] = []
        for piece in text.split(BREAK):
            if piece:
                encode = self._encode_piece if len(piece) <= CACHED_CHARS else self._encode_uncached
                ids += encode(piece, first and not ids)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def decode_reply(self, ids: Sequence[int]) -> tuple[str, str]:
        """The text of a sampled reply: as it reads, and neutralised for `render`.

        Control tokens that were sampled as such stay whole in the second; one that was spelt out in plain tokens does
        not, so that rendering the reply again gives the same control tokens.
        """
        text = self.decode(ids)
        if self._control.search(text) is None and BREAK not in text:
            return text, text
        pieces: list[str] = []
        start = 0
        for at, token in enumerate([*ids, None]):
            if token is None or token in self.control_ids:
                pieces.append(self.neutral(self.decode(ids[start:at])) if at > start else "")
                pieces.append("" if token is None else self.decode([token]))
                start = at + 1
        return text, "".join(pieces)

    def _encode_uncached(self, text: str, first: bool) -> tuple[int, ...]:
        if first or not self._lead:
            return self._raw_encode(text)
        ids = self._raw_encode("\n" + text)
        return ids[len(self._lead) :] if ids[: len(self._lead)] == self._lead else self._raw_encode(text)

    def _raw_encode(self, text: str) -> tuple[int, ...]:
        if self._backend is not None:
            return tuple(self._backend.encode(text, add_special_tokens=False).ids)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def _find_lead(self) -> tuple[int, ...]:
        """The tokens of a newline, for tokenizers that put a space before the first word of any text.

        A piece from the middle must not get that space: it is tokenized after a newline that is taken off again.
        """
        newline, joined = self._raw_encode("\n"), self._raw_encode("\nx")
        prefixed = joined != newline + self._raw_encode("x")
        return newline if prefixed and joined[: len(newline)] == newline else ()


class _Breaker:
    """Finds control tokens in text and breaks them, overlapping ones too: a match consumes one character."""

    def __init__(self, tokens: Iterable[str]) -> None:
        longest_first = sorted({t for t in tokens if t}, key=lambda t: (-len(t), t))
        self._heads = sorted({t[:2] for t in longest_first})  # a quick test that most texts fail
        alternatives = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._find = re.compile(alternatives)
        self._starts = re.compile(f"(?=(?:{alternatives}))(.)", re.DOTALL)

    def search(self, text: str) -> str | None:
        found = self._find.search(text) if any(head in text for head in self._heads) else None
        return None if found is None else found.group()

    def apply(self, text: str) -> str:
        text = text.replace(BREAK, "\ufffd")
        if not any(head in text for head in self._heads):
            return text
        return self._starts.sub(rf"\1{BREAK}", text)


def _detect_format(template: str) -> tool_calls.Format:
    """The tool-call markup that a template's own text teaches; Hermes where it teaches none."""
    if "<tool_call>" not in template and re.search(r'\\?"parameters\\?": *dictionary|<\|python_tag\|>', template):
        return "llama"
    return "hermes"


def _with_system(turns: list[Turn], text: str) -> list[Turn]:
    if turns and turns[0]["role"] == "system":
        return [turns[0] | {"content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _fold_system(turns: list[Turn]) -> list[Turn]:
    """Each system message becomes the start of the user message after it, for templates without that role."""
    folded: list[Turn] = []
    held = ""
    for turn in turns:
        if turn["role"] == "system":
            held += turn["content"] + "\n\n"
        elif held and turn["role"] == "user":
            folded.append(turn | {"content": held + turn["content"]})
            held = ""
        else:
            folded.append(turn)
    return [*folded, {"role": "user", "content": held.rstrip()}] if held else folded


def _tools_as_user(turns: list[Turn]) -> list[Turn]:
    """Consecutive tool messages become one user message, for templates without that role."""
    adapted: list[Turn] = []
    open_group = False
    for turn in turns:
        is_tool = turn["role"] == "tool"
        text = f"<tool_response>\n{turn['content']}\n</tool_response>" if is_tool else turn["content"]
        if is_tool and open_group:
            adapted[-1] = {"role": "user", "content": f"{adapted[-1]['content']}\n{text}"}
        else:
            adapted.append({"role": "user", "content": text} if is_tool else turn)
        open_group = is_tool
    return adapted
