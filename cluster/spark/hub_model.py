"""How large a model on the hub is, and whether this host may have it."""

from __future__ import annotations

import json

from cluster.argv.far import far
from cluster.argv.hub import WEIGHTS
from cluster.argv.question import Answer, Question
from cluster.spark.fact import Missing


def question(model: str, revision: str, token_file: str, *, dummy: bool = False) -> Question:
    """One request to the hub from the host; `token_file` is a private file there, or empty.

    `dummy`: the weights are not counted.
    """
    given = {"model": model, "revision": revision, "token_file": token_file, "leave_out": WEIGHTS if dummy else ()}
    return far("hub_model", given, timeout_s=20)


def parse(answer: Answer) -> int | Missing:
    """Bytes of the files; `refused` when access is not given, `absent` when the model or revision is not there."""
    try:
        told = json.loads(answer.text)
        if "bytes" in told:
            return int(told["bytes"])
        kind = {401: "refused", 403: "refused", 404: "absent"}.get(told["status"], "unreadable")
        return Missing(f"{told['error']} (HTTP {told['status']})" if told["status"] else told["error"], kind)  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError, AttributeError):
        return Missing(answer.error_text.strip()[-200:] or "the hub could not be asked")
