"""Reinforcement learning: `python -m trainer.run --env code_exec`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console

from trainer import interrupts
from trainer.invocation import Run, parse

INTERRUPTED = 130


def main(args: Sequence[str] | None = None) -> int:
    """Exit status: 0 trained, 1 the run failed, 2 bad input, 130 interrupted."""
    console = Console()
    run: Run | None = None
    with interrupts.obeyed():
        try:
            run = parse(sys.argv[1:] if args is None else args)
            # Idle threads must sleep: where another process wants the core, spinning ones cost many times the work.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            # torch and transformers take seconds to import: not before the command line is known to be right.
            from rollout.link import LinkError
            from trainer import report, session
            from trainer.inbox import StalledError
            from trainer.launch import WorkerError

            prepared = session.prepare(run)
        except KeyboardInterrupt:
            if run is not None:
                run.discard()
            console.print("interrupted before the first step")
            return INTERRUPTED
        except ValueError as error:
            if run is not None:
                run.discard()
            print(f"error: {error}", file=sys.stderr)
            return 2
        try:
            session.execute(prepared, console)
        except KeyboardInterrupt:
            console.print(f"interrupted; go on with: python -m trainer.run --resume {run.folder}", soft_wrap=True)
            return INTERRUPTED
        except (LinkError, WorkerError, StalledError, OSError, ValueError) as error:
            print(f"error: {error}\ngo on with: python -m trainer.run --resume {run.folder}", file=sys.stderr)
            return 1
        try:
            report.show_episodes(run.folder, console)
            curve = report.draw_curve(run.folder)
        except KeyboardInterrupt:
            return INTERRUPTED
    console.print(f"run: {run.folder}\ncurve: {curve}\npage: python -m trainer.view {run.folder}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
