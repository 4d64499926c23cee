"""Fictional worlds: companies, people who work for them and towns that some are mayors of, one document each.

Questions take one to four hops. Those of one and two need no towns, and their worlds have none. Clutter is what makes
real collections hard: documents about somebody of a similar name, and documents that were true once.
"""

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


RIVERS = _split("Alba Brenna Corvo Delva Elster Fulda Garda Havel")
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
    Question("what does the employer of the mayor of {} make", "town", ("mayor", "works", "makes")),
    Question("where is the employer of the mayor of {} based", "town", ("mayor", "works", "based")),
    Question("where does the mayor of the town where {} lives work", "person", ("lives", "mayor", "works")),
    Question("what does the employer of the mayor of the town where {} lives make", "person",
             ("lives", "mayor", "works", "makes")),
    Question("where is the employer of the mayor of the town where {} lives based", "person",
             ("lives", "mayor", "works", "based")),
)  # fmt: skip
LEVELS = tuple(sorted({len(question.hops) for question in QUESTIONS}))
MIN_DOCUMENTS, MAX_DOCUMENTS = 6, 2 * len(COMPANIES)
CLUTTER = {1: 0, 2: 0, 3: 2, 4: 4}  # by level: how many documents of either sort
MAX_CLUTTER = 4
OUTDATED = "A document that names a year in its title is out of date."
LOOKALIKES = {
    "company": ("{} Holding", "{} Trading", "{} Works", "New {}"),
    "town": ("{} Heath", "{} Bridge", "Old {}", "{} Sands"),
    "person": ("{} B. {}", "{} M. {}", "{} T. {}", "{} V. {}"),
}
UNKNOWN = "unknown"  # the right answer to a question that the documents do not answer

Facts = dict[str, dict[str, str]]  # title of a document -> attribute -> value


@dataclass(frozen=True, slots=True)
class World:
    """What is so, and the titles of the documents by what they are about."""

    facts: Facts
    titles: dict[str, list[str]]


def sample_world(rng: np.random.Generator, companies: int, people: int, towns: int = 0) -> World:
    """A world of that many documents, whose attributes come in a random order. With towns, everybody lives in one."""
    employers = [COMPANIES[i] for i in rng.permutation(len(COMPANIES))[:companies]]
    pairs = rng.choice(len(FIRST_NAMES) * len(LAST_NAMES), size=people, replace=False).tolist()
    names = [f"{FIRST_NAMES[pair // len(LAST_NAMES)]} {LAST_NAMES[pair % len(LAST_NAMES)]}" for pair in pairs]
    places = [CITIES[i] for i in rng.permutation(len(CITIES))[:towns]] if towns else []
    columns: dict[str, dict[str, Sequence[str]]] = {
        "company": {"makes": PRODUCTS, "based": CITIES, "since": YEARS},
        "person": {"works": employers, "lives": places or CITIES, "born": YEARS},
        "town": {"mayor": names, "river": RIVERS, "founded": YEARS},
    }
    titles = {"company": employers, "person": names, "town": places}
    facts: Facts = {}
    for about, listed in titles.items():
        drawn = [(key, _draw(rng, options, len(listed))) for key, options in columns[about].items()]
        orders = rng.permuted(np.tile(np.arange(3), (len(listed), 1)), axis=1).tolist()
        for row, (title, order) in enumerate(zip(listed, orders, strict=True)):
            facts[title] = {drawn[i][0]: drawn[i][1][row] for i in order}
    return World(facts, titles)


def _draw(rng: np.random.Generator, options: Sequence[str], size: int) -> list[str]:
    return [options[i] for i in rng.integers(len(options), size=size).tolist()]


def sample_task(
    rng: np.random.Generator, level: int, documents: int, unanswerable: float = 0.0, clutter: int | None = None
) -> dict[str, Any]:
    """A world and a question of `level` hops; `path` names the documents that answer it, in order.

    With probability `unanswerable` the last of them is missing, and the answer is `UNKNOWN`. `clutter` documents that
    look like those of the path, and as many that are out of date, come on top (`CLUTTER` of them by default).
    """
    kinds = 2 if level <= 2 else 3
    companies = documents // kinds
    towns = companies if kinds == 3 else 0
    world = sample_world(rng, companies, documents - companies - towns, towns)
    question = _one(rng, [each for each in QUESTIONS if len(each.hops) == level])
    subject = _one(rng, world.titles[question.about])
    path, value = [], subject
    for hop in question.hops:
        path.append(value)
        value = world.facts[value][hop]
    clutter = CLUTTER[level] if clutter is None else clutter
    facts = world.facts | _clutter(rng, world, path, clutter)
    titles = [list(facts)[i] for i in rng.permutation(len(facts))]
    answerable = not (unanswerable > 0 and rng.random() < unanswerable)
    if not answerable:
        titles.remove(path[-1])
    return {
        "kind": f"{level}-hop" if answerable else "unanswerable",
        "question": question.text.format(subject) + (f"\n{OUTDATED}" if clutter else ""),
        "answer": [value if answerable else UNKNOWN],
        "answerable": answerable,
        "path": path,
        "documents": [[title, describe(title, facts[title])] for title in titles],
    }


def _clutter(rng: np.random.Generator, world: World, path: list[str], count: int) -> Facts:
    """`count` near-duplicates and `count` outdated documents of what is on the path, each wrong about everything that
    a question may ask, but for chance."""
    about = {title: kind for kind, listed in world.titles.items() for title in listed}
    path = list(dict.fromkeys(path))
    made: Facts = {}
    for number in range(count):
        title = path[number % len(path)]
        names = title.split() if about[title] == "person" else [title]
        pattern = LOOKALIKES[about[title]][number // len(path) % 4]
        for name in (pattern.format(*names), f"{title} ({YEARS[int(rng.integers(len(YEARS)))]})"):
            other = world.facts[_one(rng, [each for each in world.titles[about[title]] if each != title])]
            made[name] = {key: other[key] for key in world.facts[title]}
    return made


def describe(title: str, attributes: dict[str, str]) -> str:
    return f"{title}: {', '.join(f'{key} {value}' for key, value in attributes.items())}"


def values_of(document: str) -> list[str]:
    """The attribute values that a document states."""
    return [part.split(" ", 1)[1] for part in document.partition(": ")[2].split(", ")]


def _one(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]
