"""Rules are about causes: other hosts, cards, ports, addresses, versions and prefixes change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

from diagnosis_tools import Sample, found, lines, samples, told
from loops import each
from test_diagnosis_samples import DISGUISED

from cluster.diagnosis.rules import RULES

Mutate = Callable[[str], str]

NAMES = {
    "spark1": "gx10-7f3a",
    "spark2": "promaxgb10-d59f",
    "enp1s0": "enp5s0",
    "enP2p1s0": "enP2p5s0",
    "rocep1s0f1": "mlx5_7",
    "roceP2p1s0f1": "mlx5_9",
    "vllm_node": "my.own-name",
    "6379": "27120",
    "8000": "18080",
    "(EngineCore pid": "(EngineCore_DP3 pid",
    "gemma": "qwen",
    "google": "acme",
    "31B": "120B",
    "vllm-node": "other",
}


def other_names(text: str) -> str:
    """Hosts, cards, ports, models of somebody else."""
    for old, new in NAMES.items():
        text = text.replace(old, new)
    return text


def other_addresses(text: str) -> str:
    """Private addresses of another network; loopback and Docker's bridge mean something and stay."""
    return re.sub(r"\b(?:192\.168|10)\.\d+\.(?:\d+\.)?(\d+)\b", r"10.77.3.\1", text)


def other_places(text: str) -> str:
    """Other line numbers and process ids in what programs put before a message."""
    text = re.sub(r"(\.(?:py|cc|cpp|h|c):)\d+", r"\g<1>42", text)
    return re.sub(r"\bpid=\d+", "pid=900001", text)


def with_rank(text: str) -> str:
    """As Ray forwards it from a worker."""
    return re.sub(r"^(?=\S)", "(EngineCore_DP0 pid=77) (RayWorkerProc pid=9, ip=10.9.8.7) ", text, flags=re.MULTILINE)


def from_compose(text: str) -> str:
    """As `docker compose logs` prints it."""
    return re.sub(r"^", "vllm-1  | ", text, flags=re.MULTILINE)


def from_cluster_logs(text: str) -> str:
    """As `cluster logs` prints it."""
    return re.sub(r"^", "2026-05-20T20:35:26.123 spark2: ", text, flags=re.MULTILINE)


@each("mutate", [other_names, other_addresses, other_places], ids=lambda mutate: mutate.__name__)
@each("one", samples(), ids=lambda one: one.name)
def test_names_and_numbers(one: Sample, mutate: Mutate) -> None:
    assert found(mutate(one.text)) == ([one.right] if one.right else [])


@each("mutate", [with_rank, from_compose, from_cluster_logs], ids=lambda mutate: mutate.__name__)
@each("one", DISGUISED, ids=lambda one: one.name)
def test_prefixes(one: Sample, mutate: Mutate) -> None:
    assert found(mutate(one.text)) == [one.right]


@each("row", lines("wordings.tsv"), ids=lambda row: row.split("\t")[0])
def test_other_wordings_of_one_cause(row: str) -> None:
    id, line = row.split("\t")
    assert [one.split()[1] for one in found(line)] == [id]


QUOTED = """\
(EngineCore_DP0 pid=12) ERROR 11-28 04:00:09 [core.py:770] EngineCore failed to start.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
(EngineCore_DP0 pid=12) INFO 11-28 04:00:09 [shm_broadcast.py:466] No available shared memory broadcast block found
(RayWorkerProc pid=9, ip=10.9.8.7) ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing.
[rank1]:[W1128 04:00:09.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=60): Connection was likely closed.
RuntimeError: cancelled
"""
CAUSES = [
    one
    for one in samples()
    if any(f"{rule.level} {rule.id}" == one.right and not (rule.secondary or rule.slow) for rule in RULES)
    and one.right.startswith("fault")
]


@each("one", CAUSES, ids=lambda one: one.name)
def test_what_everybody_quotes_hides_no_cause(one: Sample) -> None:
    """The cause stands early, and a thousand lines come after it."""
    root = told(one.text + QUOTED * 200).root
    assert root
    assert f"fault {root.id}" == one.right
