"""Fictional worlds: companies, people who work for them, one document each, and questions of one or two hops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


FIRST_NAMES = _split(
    "Ada Bela Cleo Dina Edda Finn Greta Hans Iris Jonas Klara Leif Mona Nico Oskar Pia Quinn Rita Sven Tilda Ugo "
    "Vito Wanda Xavi Ylva Zita Arno Britt Cato Della"
)
LAST_NAMES = _split(
    "Adler Brandt Costa Drake Engel Falk Grimm Horn Jensen Koch Linde Moreau Novak Olsen Park Quist Reyes Stein "
    "Tamm Ulrich Varga Weiss Yates Zeller Boyd"
)
COMPANIES = _split(
    "Acron Belvia Cortex Deltic Evora Fluxon Garnet Helion Inova Juno Keltra Lumio Mistral Nordis Optima Pylon Quanta "
    "Ravel Sigma Tekton Umbra Vireo Westar Xylon Yonder Zenta"
)
CITIES = _split(
    "Athens Bergen Cork Dublin Essen Faro Ghent Havana Ibiza Jena Kiel Lagos Malmo Naples Odessa Prague Quito Rome "
    "Split Tampa Utrecht Venice Warsaw York Zagreb"
)
PRODUCTS = _split(
    "anchors bricks candles desks engines flutes globes hats irons jars keys lenses mirrors nails ovens pianos quilts "
    "robots sails tiles"
)


YEARS = tuple(str(year) for year in range(1950, 2010))


@dataclass(frozen=True, slots=True)
class Question:
    """A question's wording and the attributes that lead from its subject to the answer, one a hop."""

    text: str
    about: str  # "person" or "company"
    hops: tuple[str, ...]


QUESTIONS = (
    Question("where does {} live", "person", ("lives",)),
    Question("where does {} work", "person", ("works",)),
    Question("what does {} make", "company", ("makes",)),
    Question("where is {} based", "company", ("based",)),
    Question("what does the employer of {} make", "person", ("works", "makes")),
    Question("where is the employer of {} based", "person", ("works", "based")),
)
LEVELS = tuple(sorted({len(question.hops) for question in QUESTIONS}))

Facts = dict[str, dict[str, str]]  # title of a document -> attribute -> value


def sample_world(rng: np.random.Generator, companies: int, people: int) -> Facts:
    """A world of that many companies and people; every document's attributes come in a random order."""
    employers = [COMPANIES[i] for i in rng.permutation(len(COMPANIES))[:companies]]
    pairs = rng.choice(len(FIRST_NAMES) * len(LAST_NAMES), size=people, replace=False).tolist()
    names = [f"{FIRST_NAMES[pair // len(LAST_NAMES)]} {LAST_NAMES[pair % len(LAST_NAMES)]}" for pair in pairs]
    columns = [
        ("makes", _draw(rng, PRODUCTS, companies)),
        ("based", _draw(rng, CITIES, companies)),
        ("since", _draw(rng, YEARS, companies)),
        ("works", _draw(rng, employers, people)),
        ("lives", _draw(rng, CITIES, people)),
        ("born", _draw(rng, YEARS, people)),
    ]
    facts: Facts = {}
    orders = rng.permuted(np.tile(np.arange(3), (companies + people, 1)), axis=1).tolist()
    for row, (name, order) in enumerate(zip([*employers, *names], orders, strict=True)):
        known, position = (columns[:3], row) if row < companies else (columns[3:], row - companies)
        facts[name] = {known[i][0]: known[i][1][position] for i in order}
    return facts


def _draw(rng: np.random.Generator, options: Sequence[str], size: int) -> list[str]:
    return [options[i] for i in rng.integers(len(options), size=size).tolist()]


def sample_task(rng: np.random.Generator, level: int, documents: int) -> dict[str, Any]:
    """A world and a question of `level` hops; `path` names the documents that answer it, in order."""
    companies = documents // 2
    facts = sample_world(rng, companies, documents - companies)
    question = _one(rng, [each for each in QUESTIONS if len(each.hops) == level])
    names = list(facts)
    subject = _one(rng, names[:companies] if question.about == "company" else names[companies:])
    path, value = [], subject
    for hop in question.hops:
        path.append(value)
        value = facts[value][hop]
    order = rng.permutation(documents)
    return {
        "kind": f"{level}-hop",
        "question": question.text.format(subject),
        "answer": value,
        "path": path,
        "documents": [[names[i], describe(names[i], facts[names[i]])] for i in order],
    }


def describe(title: str, attributes: dict[str, str]) -> str:
    return f"{title}: {', '.join(f'{key} {value}' for key, value in attributes.items())}"


def values_of(document: str) -> list[str]:
    """The attribute values that a document states."""
    return [part.split(" ", 1)[1] for part in document.partition(": ")[2].split(", ")]


def _one(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]
