"""Every sample, in the forms in which it may come: the one right finding, and nothing beside it."""

from __future__ import annotations

import re
from collections.abc import Callable

from diagnosis_tools import Sample, found, lines, sample, samples, told
from loops import each

from cluster.diagnosis.rules import RULES
from cluster.diagnosis.scan import ANY_PIECE, ZEROS

ALL = samples()
HEALTHY_LOG = sample("vllm_start_healthy").text
every = each("one", ALL, ids=lambda one: one.name)


@every
def test_sample(one: Sample) -> None:
    assert found(one) == ([one.right] if one.right else [])
    file = told(one).files[0]
    assert file.known or not one.right
    for row in file.findings:
        assert row.finding.what
        assert row.finding.remedy
        assert "{" not in row.finding.what.replace("{{", "")
        assert row.line
        assert row.finding.evidence == one.text.splitlines()[row.line - 1].strip()[:500]


def test_healthy_lines_are_silent() -> None:
    for line in lines("healthy_lines.txt"):
        assert found(line + "\n") == [], line


@each("row", lines("lines.tsv"), ids=lambda row: row.split("\t")[0])
def test_line_of_a_rule(row: str) -> None:
    """The line has this rule and no other; and it is found however long the text around it is."""
    id, line = row.split("\t")
    rule = next(rule for rule in RULES if rule.search(line))
    assert rule.id == id
    assert ANY_PIECE.search(line.lower().encode().translate(ZEROS))
    expected = [] if rule.level == "normal" else [f"{rule.level} {id}"]
    assert found(HEALTHY_LOG + line + "\n") == expected


def test_every_rule_has_an_example() -> None:
    texts = [line for one in ALL for line in one.text.splitlines()] + [row.split("\t")[1] for row in lines("lines.tsv")]
    shown = {next((rule.id for rule in RULES if rule.search(line)), "") for line in texts}
    assert {rule.id for rule in RULES} - shown == set()


NAMES = {
    "spark1": "gx10-7f3a",
    "enp1s0": "enp5s0",
    "enP2p1s0": "enP2p5s0",
    "rocep1s0f1": "mlx5_7",
    "roceP2p1s0f1": "mlx5_9",
    "6379": "27120",
    "8000": "18080",
    "(EngineCore pid": "(EngineCore_DP3 pid",
    "gemma": "qwen",
    "google": "acme",
}


def of_others(text: str) -> str:
    """Hosts, cards, ports, models, private addresses, line numbers and process ids of somebody else."""
    for old, new in NAMES.items():
        text = text.replace(old, new)
    text = re.sub(r"\b(?:192\.168|10)\.(\d+)\.(?:\d+\.)?(\d+)\b", r"10.77.\1.\2", text)
    return re.sub(r"\bpid=\d+", "pid=900001", re.sub(r"(\.(?:py|cc|cpp|h|c):)\d+", r"\g<1>42", text))


@every
def test_names_and_numbers(one: Sample) -> None:
    assert found(of_others(one.text)) == ([one.right] if one.right else [])


QUIET = "(EngineCore pid=12) INFO 03-01 10:00:00 [core.py:1] step\n" * 300
COLORED = "2026-05-20T20:35:26.123456789Z \x1b[36m\x1b[1m\\1\x1b[0m"
FORWARDED = "(EngineCore_DP0 pid=77) (RayWorkerProc pid=9, ip=10.9.8.7) "
COMPOSE, TIMED = "vllm-1  | ", "2026-05-20T20:35:26.123 spark2: "
DISGUISES: list[tuple[str, Callable[[str], str]]] = [
    # as a Windows terminal saves it, without an end of the last line
    ("hf_gated_401 df_full", lambda text: text.rstrip("\n").replace("\n", "\r\n")),
    # as docker logs --timestamps prints a program that colors
    ("unknown_traceback journal_kernel_oom", lambda text: re.sub("^(.*)$", COLORED, text.rstrip(), flags=re.M)),
    # in a log that goes on, but reaches nothing new: no wait that ended, no server that answers
    ("nccl_watchdog_timeout ssh_host_key_changed", lambda text: HEALTHY_LOG + QUIET + text + QUIET),
    # as Ray forwards it from a worker
    ("vllm_free_memory_check ray_gcs_unreachable", lambda text: re.sub(r"^(?=\S)", FORWARDED, text, flags=re.M)),
    # as docker compose logs prints it, and cluster logs
    (
        "nccl_modify_qp_err61_gid_hole torch_rendezvous_timeout",
        lambda text: re.sub("^", COMPOSE, text, flags=re.M),
    ),
    ("ray_oom_monitor_killed docker_pull_clock_skew", lambda text: re.sub("^", TIMED, text, flags=re.M)),
]
"""A disguise is undone before a rule sees a line, so two samples each stand for all."""


@each("names, disguise", DISGUISES, ids=str)
def test_in_disguise(names: str, disguise: Callable[[str], str]) -> None:
    for one in map(sample, names.split()):
        assert found(disguise(one.text)) == ([one.right] if one.right else [])


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
    """The cause stands early, and a hundred lines come after it."""
    root = told(one.text + QUOTED * 20).root
    assert root
    assert f"fault {root.id}" == one.right
