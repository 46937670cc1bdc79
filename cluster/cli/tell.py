"""What the watch says: a line for each change, or one JSON object a line. docs/watching.md describes the objects."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cluster.cli.findings import STYLES, below
from cluster.diagnosis.standing import Standing
from cluster.screen import Screen
from cluster.spark.finding import Finding, Shared

INDENT = " " * 9


class Teller:
    """Says what happened, when, and to which deployment."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def say(self, event: str, deployment: str, text: str, *, style: str | None = None, **more: Any) -> None:
        """One change."""
        now = datetime.now().astimezone()
        self.screen.text(f"{now:%H:%M:%S} {deployment}{': ' if deployment else ''}{text}", INDENT, style)
        self.screen.record(
            {"t": now.isoformat(timespec="seconds"), "event": event, "deployment": deployment, "text": text} | more
        )

    def raised(self, deployment: str, finding: Finding) -> None:
        """A finding that is new, with what was seen and what to do."""
        where = f" on {finding.host}" if finding.host else ""
        text = f"{finding.level}: {finding.check}{where}: {finding.what}"
        self.say("raised", deployment, text, style=STYLES[finding.level], finding=finding.as_dict())
        for label, said in below(Shared(finding, (finding.host,) if finding.host else ())):
            self.screen.text(f"{INDENT}{label}: {said}", INDENT + " " * (len(label) + 2))

    def over(self, deployment: str, ended: Standing, now: float) -> None:
        """A finding that does not stand any more."""
        finding, seconds = ended.finding, now - ended.since
        where = f" on {finding.host}" if finding.host else ""
        text = f"over: {finding.check}{where}, after {seconds:.0f} s"
        self.say("over", deployment, text, finding=finding.as_dict(), after_s=round(seconds))
