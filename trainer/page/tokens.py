"""What single tokens say, from a tokenizer that is on this machine already."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPLACEMENT = "\ufffd"  # what a decoder puts where a token holds a part of a character

Decode = Callable[[int], str]


def load(saved: Path | None, model: str) -> tuple[Decode | None, str]:
    """(id -> text, where it comes from): the tokenizer in the folder `saved`, else of `model` (a folder or a hub id).

    Nothing is downloaded. (None, why) where there is none.
    """
    tried = [str(saved)] if saved else []
    if model and model != "embedded":
        tried.append(model)
    if not tried:
        return None, "the run saved no tokenizer"
    why = ""
    for source in tried:
        try:
            return _load(source), source
        except (OSError, ValueError, KeyError) as error:
            why = why or f"no tokenizer at {source}: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
    return None, why


@functools.lru_cache(4)  # the served page is made again and again
def _load(source: str) -> Decode:
    path = Path(source) / "tokenizer.json"
    if path.exists():  # nearly always, and read without the seconds that importing transformers takes
        from tokenizers import Tokenizer

        try:
            fast = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower for a damaged file
            raise ValueError(f"{path} is damaged ({error})") from error
        return functools.partial(_text, fast.id_to_token, lambda i: fast.decode([i], skip_special_tokens=False))
    from transformers import AutoTokenizer

    slow: Any = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    return functools.partial(_text, slow.convert_ids_to_tokens, lambda i: slow.decode([i], skip_special_tokens=False))


def _text(piece_of: Callable[[int], str | None], decode: Callable[[int], str], token: int) -> str:
    """The text of `token`; its name in the vocabulary where it is only a part of a character."""
    try:
        piece = piece_of(token)
        text = decode(token)
    except (OverflowError, IndexError):  # an id that no vocabulary has
        return ""
    if piece is None:
        return ""
    if not text or REPLACEMENT in text:
        return piece
    # SentencePiece decoders drop a first token's space.
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text
