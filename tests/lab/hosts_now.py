"""What is on the lab's hosts now, seen by SSH and not through the product."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from own_lab import Lab
from waiting import eventually

HOSTS = ("spark1", "spark2")
DATA = "~/.local/share/cluster"
KEPT = r"\.local"
"""What a command that was begun and put back leaves: audit lines, the lock's file, caches, and their folders."""
OURS = rf"""
docker ps -a --filter label=cluster.deployment --format 'container {{{{.Names}}}} {{{{.Status}}}}'
docker ps -a --filter label=cluster.try --format 'probe {{{{.Names}}}} {{{{.Status}}}}'
ls -A {DATA}/deployments 2>/dev/null | sed 's/^/directory /'
ps axww -o args= | grep -E 'VLLM::|ray::|raylet|gcs_server|rank\.py|"silence_s"' | grep -v grep | sed 's/^/process /'
ss -Hltn | awk '{{print $4}}' | grep -E ':(8000|271[0-9][0-9]|272[0-9][0-9])$' | sed 's/^/listens /'
true
"""


def of_ours(lab: Lab) -> dict[str, list[str]]:
    """By host, everything that a deployment leaves: containers, directories, processes, listening ports."""
    return {host: said.splitlines() for host, said in on_both(lab, OURS).items()}


def assert_nothing_of_ours(lab: Lab, within_s: float = 10) -> None:
    """Nothing of ours is left; a process may need a moment to end."""
    eventually(lambda: not any(of_ours(lab).values()), within_s, lambda: of_ours(lab))


def take_all_away(lab: Lab) -> None:
    """Empty hosts, whatever a test left; the product has no part in this."""
    on_both(lab, f"docker ps -aq | xargs -r docker rm -f -v >/dev/null; sudo -n rm -rf {DATA}")


def on_both(lab: Lab, line: str) -> dict[str, str]:
    """A line of shell on both hosts at the same time, which must succeed; what each said."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(HOSTS, pool.map(lambda host: lab.tell(host, line), HOSTS), strict=True))


def containers(lab: Lab) -> dict[str, list[str]]:
    """By host, the ids of all running containers."""
    return {host: sorted(said.split()) for host, said in on_both(lab, "docker ps -q --no-trunc").items()}


def rank_of(lab: Lab, host: str) -> str:
    """Name of the one container of ours on a host, running or not."""
    [name] = lab.tell(host, "docker ps -a --filter label=cluster.deployment --format '{{.Names}}'").split()
    return name


def state_of(lab: Lab, host: str) -> dict[str, Any]:
    """Docker's state of the one container of ours on a host."""
    state: dict[str, Any] = json.loads(lab.tell(host, f"docker inspect -f '{{{{json .State}}}}' {rank_of(lab, host)}"))
    return state


def snapshot(lab: Lab, *, without: str = "", hosts: Sequence[str] = HOSTS) -> dict[str, list[str]]:
    """By host, all that can be seen: containers, images, files with size and time, processes, listening ports.

    `without` is a pattern (Python) of lines to leave out. Our own session is not counted.
    """
    script = r"""
    docker ps -a --no-trunc --format 'container {{.ID}} {{.Names}} {{.State}}'
    docker images -a --no-trunc --format 'image {{.ID}} {{.Repository}}:{{.Tag}}'
    sudo -n find /home /root /etc /opt /srv /tmp /var/tmp /dev/shm -xdev \
        ! -path /opt/cluster-lab/\* ! -type s \( -type d -printf 'folder %p %m\n' -o -printf 'file %p %y %m %s %T@\n' \)
    ps axww -o pid=,args= | sed 's/^/process /'
    ss -Hltnu | awk '{print "listens", $1, $5}'
    """
    session = re.compile(
        r"process +\d+ (sshd: |-?(ba)?sh |ps axww|sed |sudo |find |ss |awk |\[)" + f"|{without or '^$'}"
    )
    told = {host: lab.tell(host, script).splitlines() for host in hosts}
    return {host: sorted(line for line in lines if not session.search(line)) for host, lines in told.items()}


def assert_same(lab: Lab, before: dict[str, list[str]], *, without: str = "", within_s: float = 10) -> None:
    """The hosts are as they were; a process may need a moment to end."""
    until = time.monotonic() + within_s
    while (now := snapshot(lab, without=without, hosts=tuple(before))) != before:
        changed = {host: sorted(set(now[host]) ^ set(before[host])) for host in before}
        assert time.monotonic() < until, changed
        time.sleep(0.3)


def ask_model(lab: Lab, host: str = "spark1", *, key: str = "", timeout_s: int = 120) -> str:
    """One completion asked of a host's own port 8000 with curl: HTTP status, and the text after it."""
    body = '{"model": "cluster-lab/tiny-gemma-4", "prompt": "Hello", "max_tokens": 4}'
    header = f"-H 'Authorization: Bearer {key}'" if key else ""
    return lab.tell(
        host,
        f"curl -s -m {timeout_s} -w '%{{http_code}}' http://127.0.0.1:8000/v1/completions {header}"
        f" -H 'Content-Type: application/json' -d '{body}' || true",
    )


def assert_serves(lab: Lab) -> None:
    """A completion comes out of the server on spark1."""
    said = ask_model(lab)
    assert said.endswith("200"), said
    assert json.loads(said[:-3])["usage"]["completion_tokens"] == 4


BACK_S = 90
"""Within this time a rank that lost its peer must have ended, its memory with it."""


def await_end_of_all(lab: Lab) -> float:
    """Wait until every rank has ended and no GPU process is left; how long that took."""

    def ended() -> bool:
        return all(state_of(lab, host)["Status"] == "exited" and gpu_rows(lab, host) == "" for host in HOSTS)

    return eventually(ended, BACK_S, "all ranks end and give their memory back")


def gpu_rows(lab: Lab, host: str) -> str:
    """What holds GPU memory on a host."""
    return lab.tell(host, "nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader")
