"""The page of a run: `python -m trainer.view runs/NAME`."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from trainer.page import assemble, folder
from trainer.page.serve import PageServer


@dataclass(frozen=True)
class ViewConfig:
    """Make a page of a run, finished or not: curves, the overlap timeline, and its episodes token by token.

    The page is one file that needs no network.
    """

    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.html")] = None
    """Where the page goes; by default page.html in the run's folder."""
    episodes: int = 400
    """The most episodes that the page holds: the newest, worst, best, faulty, and an even spread."""
    open: Annotated[bool, tyro.conf.FlagCreatePairsOff] = field(default=False)
    """Open the page in the browser."""
    serve: Annotated[int | None, tyro.conf.arg(metavar="PORT")] = None
    """Serve the page on this machine instead, fresh while the run goes on; 0 takes any free port."""


def write(config: ViewConfig) -> Path:
    """Make the page, whole or not at all. Raises `ValueError`, one line, for what cannot be shown or written."""
    if config.episodes < 0:
        raise ValueError(f"--episodes must not be negative, got {config.episodes}")
    out = config.out or config.run / "page.html"
    page = assemble.page(config.run, count=config.episodes)
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, out)
    except OSError as error:
        raise ValueError(f"cannot write {out} ({error.strerror}): choose another --out") from error
    return out


def serve(config: ViewConfig, port: int) -> None:
    """Serve until Ctrl-C. Raises `ValueError`, one line, for a folder or a port that cannot be used."""
    folder.check(config.run)
    try:
        server = PageServer(config.run, port, config.episodes)
    except (OSError, OverflowError) as error:
        raise ValueError(f"cannot serve on port {port}: {error}") from error
    print(f"{server.address} (Ctrl-C ends it)", flush=True)
    if config.open:
        webbrowser.open(server.address)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("ended")


def main(args: Sequence[str] | None = None) -> int:
    """Exit status: 0 made, 2 bad input."""
    config = tyro.cli(ViewConfig, args=sys.argv[1:] if args is None else args, prog="python -m trainer.view")
    try:
        if config.serve is not None:
            serve(config, config.serve)
            return 0
        out = write(config)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(out)
    if config.open:
        webbrowser.open(out.resolve().as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
