"""All containers of a host, running or not, from `docker ps -aq` and one `docker inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Container:
    """One container. `id` and `image_id` are full ids, `name` without the slash, `image` as it was named at start.

    `state` is docker's word (`created`, `running`, `paused`, `restarting`, `removing`, `exited`, `dead`). `exit_code`
    and `finished_at` are None and empty while it has never ended. Times are RFC 3339 as docker prints them, empty
    for never. `pid` of the first process on the host, 0 when it does not run. `argv`: entrypoint and words.
    """

    id: str
    name: str
    image: str
    image_id: str
    state: str
    exit_code: int | None
    labels: Mapping[str, str]
    started_at: str
    finished_at: str
    pid: int
    argv: tuple[str, ...]
