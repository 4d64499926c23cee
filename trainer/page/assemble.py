"""One HTML file of a run's folder, with everything in it: data, styles, scripts and Plotly."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from trainer.metrics import read_metrics
from trainer.page import curves, episodes, folder, timeline, tokens

READER = ("tokens.js", "episodes.js", "tabs.js")  # the episode reader and the header, which every page has
SCRIPTS = ("page.js", "groups.js", "charts.js", "timeline.js", *READER, "start.js")
TABS = {"curves": "Curves", "timeline": "Timeline", "episodes": "Episodes", "run": "Run"}
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # what could end a script element, or begin another


def page(run: Path, *, count: int, served: bool = False) -> str:
    """The page of the run's folder `run`, with up to `count` of its episodes.

    A run that is still going on is read as far as it has come. Raises `ValueError` for a folder that is not a run's.
    """
    folder.check(run)
    data, bodies = gather(run, count)
    return document("run.html", TABS, SCRIPTS, data, bodies, served=served)


def document(
    sections: str,
    tabs: dict[str, str],
    scripts: Sequence[str],
    data: dict[str, Any],
    bodies: Sequence[tuple[str, dict[str, Any]]],
    *,
    served: bool = False,
) -> str:
    """A page with `tabs` (name: title), whose sections are those of the file `sections`, drawn by `scripts`."""
    script = "\n".join(_asset(name) for name in scripts)
    plotly = get_plotlyjs()
    return fill(
        _asset("page.html"),
        policy=_policy([plotly, script], served),
        title=html.escape(f"{data['name']} · Slipstream"),
        style=_asset("page.css"),
        served="yes" if served else "no",
        tabs="\n".join(f'      <button role="tab" data-tab="{name}">{title}</button>' for name, title in tabs.items()),
        sections=fill(_asset(sections), episodes=_asset("episodes.html")),
        data=embed(data),
        bodies="\n".join(
            f'<script type="application/json" id="episode-{name}">{embed(body)}</script>' for name, body in bodies
        ),
        plotly=plotly,
        script=script,
    )


def gather(run: Path, count: int) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """What the page's scripts read: (the data, each episode's details by its name)."""
    mark = folder.fingerprint(run)  # before the files are read, so that what comes later counts as news
    config = folder.read_config(run)
    records = read_metrics(run)
    seen = episodes.survey(run)
    chosen = episodes.choose(seen.episodes, count)
    read = list(episodes.read(run, chosen, seen.attempts))
    tokenizer = run / "tokenizer"
    decode, source = tokens.load(tokenizer if tokenizer.exists() else None, config.get("model", ""))
    ids = {token for _, body in read for sequence in body["sequences"] for token in sequence["tokens"]}
    steps = curves.training(records)
    now = time.time()
    data = {
        "name": run.resolve().name,
        "fingerprint": mark,
        "status": folder.status(run, config, records, now),
        "curves": {
            "columns": curves.columns(steps),
            "evaluations": curves.evaluation_points(records, seen.scores),
            "steps": len(steps),
            "errored": sum(r.get("episodes/errored", 0.0) for r in steps),
            "thinned": math.ceil(len(steps) / curves.POINTS),
        },
        "timeline": timeline.as_page_data(timeline.build(*timeline.read_events(run))),
        "episodes": {
            "lines": [line for line, _ in read],
            "texts": episodes.texts(ids, decode),
            "note": note(len(read), len(seen.episodes), count, source if decode is None else ""),
        },
        "run": folder.about(run, config, records, now),
    }
    return data, [(line["id"], body) for line, body in read]


def note(shown: int, total: int, asked: int, without_texts: str) -> str:
    """What the page says about which episodes it holds."""
    if not total:
        return "No episode has arrived yet."
    if shown == total:
        text = f"All {total:,} episodes of the run are on this page."
    else:
        text = (
            f"{shown:,} of the run's {total:,} episodes are on this page, in equal parts the newest, the worst, "
            "the best, those that are errored, truncated or labelled, and an even spread over the run. "
        )
        text += (
            f"--episodes N puts more on it (at most {episodes.MAX_TOKENS:,} tokens in all)."
            if shown >= asked
            else f"More than {episodes.MAX_TOKENS:,} tokens do not fit on it."
        )
    return f"{text} Tokens are shown as ids: {without_texts}." if without_texts else text


def embed(value: Any) -> str:
    """JSON that is safe inside a script element, whatever text it holds. Numbers that JSON lacks (NaN) become null."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda match: UNSAFE[match[0]], text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fill(template: str, **parts: str) -> str:
    """Put `parts` in place of `{{name}}`, once: what they hold is not looked through again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _asset(name: str) -> str:
    return files("trainer.page").joinpath(name).read_text("utf-8")


def _policy(scripts: list[str], served: bool) -> str:
    """Nothing but the page's own two scripts runs, and nothing is fetched from anywhere."""
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    connect = "'self'" if served else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
