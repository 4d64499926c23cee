"""One conversation, recorded as the tokens that the model saw and drew."""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.types import Message, ToolSpec
from rollout import tool_calls
from rollout.engine import Completion
from rollout.template import ChatTemplate, Turn
from rollout.wire import Sequence


@dataclass(slots=True)
class _Record:
    """The four lists of a `wire.Sequence`, while they grow."""

    tokens: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def given(self, ids: list[int]) -> None:
        """Append tokens that the policy did not draw."""
        self.tokens += ids
        self.sampled += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)

    def drawn(self, completion: Completion) -> None:
        self.tokens += completion.token_ids
        self.sampled += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.versions += completion.versions


@dataclass(frozen=True, slots=True)
class _Asked:
    """A prompt that waits for its reply: the rendered text, the new tokens, and whether they start a new sequence."""

    text: str
    new_ids: list[int]
    forks: bool


class Chat:
    """An append-only conversation: nothing that was sampled is decoded and tokenized again.

    Every prompt renders the whole history as text. If that begins with the text so far (the last prompt and the reply
    to it), only the rest is tokenized and appended, which also supplies the end-of-turn token after a reply that was
    cut off. If the template rewrote history (dropped earlier reasoning, say), the conversation forks: a new sequence
    starts from the tokens of the whole rendering, and the old one is kept as it is.
    """

    def __init__(self, template: ChatTemplate, tools: tuple[ToolSpec, ...] = ()) -> None:
        self.template = template
        self.tools = tuple(tools)
        self.messages: list[Message] = []
        self._turns: list[Turn] = []
        self._records: list[_Record] = [_Record()]
        self._heads: list[str] = []  # the text so far, in each form that still counts as unchanged
        self._asked: _Asked | None = None
        self._calls = 0

    def add(self, *messages: Message) -> None:
        """Append messages that the model did not sample. An assistant's calls are written out where it has no text."""
        for message in messages:
            written = message
            if message.role == "assistant" and message.tool_calls and not message.content:
                text = tool_calls.render(self.template.tool_format, message.tool_calls, self.tools)
                written = Message(role="assistant", content=text, tool_calls=message.tool_calls)
            self.messages.append(written)
            self._turns.append(self.template.turn(written))
        if messages:
            self._asked = None

    def prompt(self) -> list[int]:
        """Every token so far, up to where the assistant speaks. Raises `ValueError` where the template refuses."""
        if self._asked is None:
            self._asked = self._ask()
        return list(self._asked.new_ids) if self._asked.forks else self._records[-1].tokens + self._asked.new_ids

    def _ask(self) -> _Asked:
        text = self.template.render(self._turns, self.tools)
        for head in self._heads:
            if text.startswith(head):
                return _Asked(text, self.template.encode(text[len(head) :], first=False), forks=False)
        return _Asked(text, self.template.encode(text), forks=bool(self._records[-1].tokens))

    def reply(self, completion: Completion) -> Message:
        """Append what was sampled after the last `prompt()`; returns it as a message, its tool calls parsed."""
        assert self._asked is not None, "reply() follows prompt()"
        asked, self._asked = self._asked, None
        if asked.forks:
            self._records.append(_Record())
        self._records[-1].given(asked.new_ids)
        self._records[-1].drawn(completion)

        ids = completion.token_ids
        stopped = completion.finish == "stop" and bool(ids) and ids[-1] in self.template.stop_ids
        text, rendered = self.template.decode_reply(ids[:-1] if stopped else ids)
        stop = self.template.decode(ids[-1:]) if stopped else ""
        # The template may trim a reply, or end it with another token than the model did. Neither rewrites what was
        # said, so the tokens as sampled stay, and the template's end-of-turn follows them.
        forms = dict.fromkeys((rendered + stop, rendered, rendered.strip() + stop, rendered.strip()))
        self._heads = [asked.text + form for form in forms]

        calls = tool_calls.parse(self.template.tool_format, text, self.tools, first_id=self._calls)
        self._calls += len(calls)
        message = Message(role="assistant", content=text, tool_calls=calls)
        self.messages.append(message)
        self._turns.append({"role": "assistant", "content": rendered})
        return message

    def sequences(self) -> list[Sequence]:
        """What there is to train on: one sequence, and one more for every fork. Those without a reply are left out."""
        return [Sequence(r.tokens, r.sampled, r.logprobs, r.versions) for r in self._records if any(r.sampled)]
