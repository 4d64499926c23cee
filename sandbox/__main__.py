"""`python -m sandbox probe`: prints what this machine can isolate. Exits with 1 where no full backend works."""

from __future__ import annotations

import asyncio
import sys

from sandbox.probe import Finding, probe

_FULL = ("backend local", "backend docker")


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="What this machine can isolate")
    for heading in ("", "what", "found", "how to fix it"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        mark = Text("yes", "green") if finding.works else Text("no", "red")
        table.add_row(mark, Text(finding.what), Text(finding.found), Text(finding.fix))
    Console().print(table)


def main(arguments: list[str]) -> int:
    if arguments != ["probe"]:
        print("usage: python -m sandbox probe", file=sys.stderr)
        return 2
    findings = asyncio.run(probe())
    _print(findings)
    return 0 if any(finding.works and finding.what in _FULL for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
