"""Trouble that no rule knows: it is never called healthy, and quoted in its own words without wrappers."""

from __future__ import annotations

import pytest
from diagnosis_tools import found, sample, told

from cluster.cli.explain import view
from cluster.diagnosis.rules import peel

HOSTS = ("vllm_start_healthy", "dmesg_boot_healthy", "nccl_info_ib_healthy", "ray_raylet_healthy", "rank_head_healthy")
UNKNOWN = (
    "spark1:77:99 [0] NCCL WARN gadget of rail 3 was not armed",
    "[2026-05-20 20:35:26] spark1:77:99 [0] transport/gadget.cc:321 NCCL WARN gadget is off",
    "e66aa18dc444:3171:3171 [0] misc/gadget.cu:61 WARN Gadget is off",
    "mlx5_core 0000:01:00.0: cmd_gadget: QUERY_GADGET(0x777) timeout. Will cause a leak of a command resource",
    "[ 4711.123456] nvme nvme0: gadget 7 QID 4 timeout, aborting",
    "[ 4711.123456] NETDEV WATCHDOG: enP7s7 (r8127): transmit queue 0 timed out 5004 ms",
    "kernel: mlx5_core 0002:01:00.1: gadget_query failed: err(-110)",
    "[ 4711.123456] nvidia 000f:01:00.0: gadget init failed: -5",
    "2026-05-20T20:35:26+0200 spark1 kernel: NVRM: gadgetInit: failed with status 0x40",
    "[ 4711.123456] arm-smmu-v3 arm-smmu-v3.3.auto: CMD_SYNC timeout at 0x1",
    "Process gadget_server exited with code 3",
    "Rank 1 gadget died (exit code: -11)",
    "gadget.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED",
    "(EngineCore pid=12) ERROR 03-01 10:00:00 [gadget.py:9] the gadget came off",
    "gadgets.errors.GadgetError: the gadget came off",
    "(EngineCore_DP0 pid=12) (RayWorkerProc pid=9, ip=10.9.8.7) acme.GadgetFailure: no gadget on rank 1",
    "[2026-05-20 20:35:26,123 E 77 99] gadget.cc:12: The gadget came off",
    "[rank0]:[E520 20:35:26.123 Gadget.cpp:12] the gadget came off",
    "CRITICAL: the gadget came off",
    "gadgetd: fatal: the gadget came off",
    "gadgetd: error: the gadget came off",
    "terminate called after throwing an instance of 'gadget::off'",
    "!!!!!!! Segfault encountered !!!!!!! gadget",
    "Fatal Python error: Gadget came off",
    'time="2026-05-20T20:35:26Z" level=error msg="the gadget came off"',
    "/opt/gadget.sh: line 3: gadgetctl: command not found",
    "gadgetctl: /etc/gadget.conf: Permission denied",
    "panic: gadget came off",
    "kernel panic - not syncing: gadget",
    "docker: Error response from daemon: failed to create task for container: the gadget came off",
    "RuntimeError: Worker failed with error 'the gadget came off', please check the stack trace above",
    "ray.exceptions.RayTaskError(GadgetError): ray::f() (pid=1, ip=10.0.0.1) the gadget is off",
    "pcieport 0002:00:00.0: Gadget link training failed",
    "*** ERROR: gadget came off ***",
    "FATAL: gadget came off",
    "[ 4711.123456] EXT4-fs (nvme0n1p2): gadget checksum failed, corrupt block",
    "[ 4711.123456] rcu: INFO: gadget self-detected stall, stuck for 60 s",
    "Error: gadget came off",
    "gadget: unhandled exception in thread 3",
    "ERROR 05-20 20:35:26 [x.py:1] EngineCore failed to start: the gadget came off",
)
"""Errors of programs and drivers in forms that are usual, with words that no rule has."""


@pytest.mark.parametrize(("at", "error"), list(enumerate(UNKNOWN)), ids=range(len(UNKNOWN)))
def test_an_unknown_error_among_normal_lines_is_no_all_clear(at: int, error: str) -> None:
    normal = sample(HOSTS[at % len(HOSTS)]).text.splitlines()
    diagnosis = told("\n".join([*normal, error]) + "\n")
    assert diagnosis.failed
    assert any(word in diagnosis.findings[0].finding.evidence.lower() for word in ("gadget", "netdev", "cmd_sync"))
    for place in (0, len(normal) // 2):
        shown = "\n".join(view(told("\n".join([*normal[:place], error, *normal[place:]]) + "\n")))
        assert "nothing wrong" not in shown
        assert f"line {place + 1}" in shown


@pytest.mark.parametrize(
    ("message", "clause"),
    [
        ("Error response from daemon: OCI runtime create failed: runc create failed: odd: unknown.", "odd"),
        ("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}", ""),
        ("RuntimeError: Worker failed with error 'odd', please check the stack trace above", "odd"),
        ("an ordinary message", ""),
    ],
)
def test_wrappers_are_peeled_off(message: str, clause: str) -> None:
    assert peel(message) == clause


def test_a_template_s_error_sends_nobody_to_the_kernel_s_log() -> None:
    [one] = told("jinja2.exceptions.TemplateError: roles must alternate\n").findings
    assert "template" in one.finding.remedy
    assert "journalctl" not in one.finding.remedy


def test_words_that_look_like_trouble_count_only_when_nothing_else_is_known() -> None:
    assert found("the gadget could not be mounted\n") == ["unknown unknown"]
    assert found("the gadget could not be mounted\n" + sample("vllm_cuda_oom").text) == ["fault cuda-oom"]
    assert found("3 requests, 0 failed\n") == []


BUILD = "FAILED: a.o\nnvcc -c a.cu\n/usr/include/a.cuh(12): error: identifier is undefined\nninja: build stopped: x\n"


def test_a_failed_build_quotes_the_compiler() -> None:
    [one] = told(BUILD).findings
    assert (one.id, one.line) == ("jit-build-failed", 3)
    assert one.finding.what.endswith("error: identifier is undefined")
