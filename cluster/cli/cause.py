"""The cause of a failed start, read from the evidence of it and put into the error that the user sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cluster.cli.explain import place
from cluster.cli.findings import runbook_path
from cluster.cli.logs_explain import view
from cluster.deploy import evidence, saved
from cluster.diagnosis.explain import Diagnosis, explain
from cluster.diagnosis.explanation import Explanation
from cluster.diagnosis.logline import read_line
from cluster.errors import ClusterError, InterruptedByUser
from cluster.screen import Screen

SHOWN_LENGTH = 160


def name_cause(failure: ClusterError, errors: Sequence[ClusterError], directory: str, screen: Screen) -> None:
    """Say in one of the errors what the evidence names as the cause. Unknown causes change nothing.

    All has been put back by now. What goes wrong here, or is interrupted here, is not the user's trouble.
    """
    if not directory:
        return
    try:
        diagnosis = explain(saved.sources(Path(directory)), by_cluster=True)
        text = "\n".join(view(diagnosis, {}))
        evidence.write(Path(directory) / saved.OWN, f"{text}\n".encode(), ())
    except (Exception, KeyboardInterrupt) as error:
        screen.warn(f"the evidence could not be explained: {error or type(error).__name__}")
        return
    root = known_root(diagnosis)
    if root and not isinstance(failure, InterruptedByUser):
        told_by = next((one for one in errors if root.finding.host and root.finding.host == one.host), errors[0])
        add(root, told_by, directory)


def known_root(diagnosis: Diagnosis) -> Explanation | None:
    """The cause, where a rule knows it; our own words about the failure are no evidence of what it follows from."""
    root = diagnosis.root
    if root is None or root.level != "fault" or (root.rule.secondary and root.file.endswith(saved.ERROR)):
        return None
    return root


def add(root: Explanation, error: ClusterError, directory: str) -> None:
    """Cause, the place that shows it, and the remedy, in the four lines of an error.

    Of a consequence that stands alone only the remedy: the rank's own words say more than the rule's.
    """
    finding = root.finding
    shown = read_line(finding.evidence).message[:SHOWN_LENGTH]
    if not root.rule.secondary:
        at = place(root).removeprefix(f"{directory}/")
        error.where = "; ".join(filter(None, (error.where, at if shown in error.what else f"{at}: {shown}")))
        error.what = f"{error.what}; cause: {finding.what} [{root.id}]"
    steps = f"read {runbook_path(finding.runbook)}" if finding.runbook else ""
    error.remedy = "; ".join(filter(None, (finding.remedy, steps, error.remedy)))
