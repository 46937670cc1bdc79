"""Every sample, in every form in which it may come: the one right finding, and nothing beside it."""

from __future__ import annotations

from diagnosis_tools import Sample, found, lines, sample, samples, told
from loops import each

from cluster.diagnosis.rules import RULES
from cluster.diagnosis.scan import ANY_PIECE, ZEROS

ALL = samples()
DISGUISED = [
    sample(name)
    for name in (
        "docker_no_gpu_driver",
        "docker_pull_clock_skew",
        "hf_gated_401",
        "journal_kernel_oom",
        "nccl_modify_qp_err61_gid_hole",
        "nccl_watchdog_timeout",
        "ray_gcs_unreachable",
        "ray_oom_monitor_killed",
        "ssh_host_key_changed",
        "torch_rendezvous_timeout",
        "unknown_traceback",
        "vllm_free_memory_check",
    )
]
"""Logs of every program. A disguise is undone before a rule sees a line, so these stand for all."""
OUTPUTS = [sample(name) for name in ("ip_link_mtu_mismatch_head", "df_full", "ray_status_pending_pg", "free_healthy")]
HEALTHY_LOG = sample("vllm_start_healthy").text
every = each("one", ALL, ids=lambda one: one.name)
disguised = each("one", DISGUISED, ids=lambda one: one.name)


@every
def test_sample(one: Sample) -> None:
    assert found(one) == ([one.right] if one.right else [])


@each("one", [*DISGUISED, *OUTPUTS], ids=lambda one: one.name)
def test_with_its_header(one: Sample) -> None:
    diagnosis = told(one.with_header)
    assert [f"{row.level} {row.id}" for row in diagnosis.files[0].findings] == ([one.right] if one.right else [])
    for row in diagnosis.files[0].findings:
        assert row.line is not None
        assert row.line > 2
        assert row.finding.evidence in one.with_header.splitlines()[row.line - 1]


@every
def test_is_known_and_says_what_to_do(one: Sample) -> None:
    file = told(one).files[0]
    assert file.known or not one.right
    for row in file.findings:
        assert row.finding.what
        assert row.finding.remedy
        assert "{" not in row.finding.what.replace("{{", "")


@each("one", [*DISGUISED, *OUTPUTS], ids=lambda one: one.name)
def test_crlf_and_no_newline_at_the_end(one: Sample) -> None:
    assert found(one.text.rstrip("\n").replace("\n", "\r\n")) == ([one.right] if one.right else [])


@disguised
def test_colours_and_times_of_docker(one: Sample) -> None:
    coloured = "".join(
        f"2026-05-20T20:35:2{at % 10}.123456789Z \x1b[36m\x1b[1m{line}\x1b[0m\n"
        for at, line in enumerate(one.text.splitlines())
    )
    assert found(coloured) == [one.right]


@disguised
def test_in_the_middle_of_a_healthy_log(one: Sample) -> None:
    """The log goes on after it, but reaches nothing new: no wait that ended, no server that answers."""
    quiet = "(EngineCore pid=12) INFO 03-01 10:00:00 [core.py:1] step\n" * 300
    assert found(HEALTHY_LOG + quiet + one.text + quiet) == [one.right]


def test_healthy_lines_are_silent() -> None:
    for line in lines("healthy_lines.txt"):
        assert found(line + "\n") == [], line


def test_healthy_lines_together_are_silent() -> None:
    assert found("\n".join(lines("healthy_lines.txt"))) == []


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
