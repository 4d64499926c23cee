"""Evaluation: `python -m trainer.eval --suite heldout --model runs/NAME --baseline runs/NAME@0`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console

from rollout.engine import EngineError
from rollout.episode import CannotPlay
from sandbox import SandboxError
from trainer import interrupts
from trainer.evaluation.config import PROGRAM, EvalConfig, parse
from trainer.run import INTERRUPTED


def main(args: Sequence[str] | None = None) -> int:
    """Exit status: 0 evaluated, 1 it broke on the way, 2 bad input, 130 interrupted."""
    console = Console()
    config: EvalConfig | None = None
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see trainer.run
    with interrupts.obeyed():
        try:
            config = parse(sys.argv[1:] if args is None else args)
            from trainer.evaluation import session

            session.run(config, console)
        except KeyboardInterrupt:
            console.print(f"interrupted{_go_on(config)}", soft_wrap=True)
            return INTERRUPTED
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except (EngineError, SandboxError, CannotPlay, OSError) as error:
            print(f"error: {error}{_go_on(config)}", file=sys.stderr)
            return 1
    return 0


def _go_on(config: EvalConfig | None) -> str:
    return "" if config is None else f"\ngo on with: {PROGRAM} --out {config.folder}"


if __name__ == "__main__":
    sys.exit(main())
