"""The words of a docker command, read as docker reads them."""

from __future__ import annotations

import re
from typing import Any

from cluster.argv.question import Answer

VALUED = {
    "--pull",
    "--name",
    "--restart",
    "--gpus",
    "--network",
    "--cap-add",
    "--ulimit",
    "--shm-size",
    "--stop-timeout",
    "--log-driver",
    "--log-opt",
    "--device",
    "--mount",
    "--label",
    "--env",
    "--entrypoint",
    "--user",
}
BARE = {"--detach", "--rm", "--interactive", "--init"}
SEE_HELP = "\nSee 'docker run --help'."


class Failed(Exception):
    """A docker command that ends with an error: what it says on stderr, its exit code, its output before."""

    def __init__(self, said: str, code: int = 1, out: str = "") -> None:
        super().__init__(said)
        self.answer = Answer(code, out.encode(), said.encode() + b"\n")


def read_run(words: list[str]) -> tuple[dict[str, list[str]], set[str], str, list[str]]:
    """(options with values, bare ones, image, arguments) of `docker run`; a flag that docker does not know fails."""
    options: dict[str, list[str]] = {}
    bare: set[str] = set()
    at = 0
    while words[at].startswith("-"):
        if words[at] in VALUED:
            options.setdefault(words[at], []).append(words[at + 1])
            at += 2
        elif words[at] in BARE:
            bare.add(words[at])
            at += 1
        else:
            raise Failed(f"unknown flag: {words[at]}{SEE_HELP}", 125)
    return options, bare, words[at], words[at + 1 :]


def filled(form: str, told: dict[str, Any]) -> str:
    """A Go template of plain paths, as docker fills it."""

    def value(path: re.Match[str]) -> str:
        found: Any = told
        for name in path[1].split("."):
            found = found[name]
        return str(found).lower() if isinstance(found, bool) else str(found)

    return re.sub(r"{{\.([\w.]+)}}", value, form)
