"""Which of many lines is the cause: by time over several ranks, by place in one text; and what is never guessed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from diagnosis_tools import SAMPLES, found, sample, source, told

from cluster.diagnosis.explain import explain
from cluster.diagnosis.lines import read_line
from cluster.diagnosis.rules import Explanation
from cluster.diagnosis.scan import Source

RANKS = {path.name: path.read_text() for path in sorted((SAMPLES / "ranks").iterdir())}
"""A worker killed by its kernel, and what the head says of it; by file name."""


def root_of(*given: str | Source) -> Explanation:
    """The cause in these texts."""
    root = explain([one if isinstance(one, Source) else source(f"{at}", one) for at, one in enumerate(given)]).root
    assert root
    return root


def test_the_kernel_of_the_worker_is_the_cause_of_what_the_head_says() -> None:
    diagnosis = explain([source(name, text, name[:6]) for name, text in RANKS.items()])
    [root] = diagnosis.findings
    assert root == diagnosis.root
    assert (root.id, root.file, root.line, root.finding.host) == ("kernel-oom", "spark2-kernel.txt", 1, "spark2")
    assert "VLLM::Worker_TP" in root.finding.what
    secondary = {"worker-died", "engine-dead", "nccl-closed", "gpu-xid-after-kill"}
    assert {one.id for one in diagnosis.secondary} == secondary
    alone = told(*RANKS.values()).files
    assert [[one.id for one in file.findings] for file in alone] == [["worker-died"], ["kernel-oom"]]


def test_the_earliest_cause_is_first_by_zone() -> None:
    early = "2026-05-20T20:00:00Z ValueError: Free memory on device cuda:0 (3/121 GiB) on startup is less than it\n"
    late = "2026-05-20T22:00:00+01:00 OSError: [Errno 98] Address already in use\n"
    assert root_of(early, late).id == root_of(late, early).id == "free-memory-check"


def test_secondary_lines_alone_say_that_they_are_not_the_cause() -> None:
    for name in ("docker_run_exit_125", "vllm_engine_core_init_failed_empty", "ray_stale_session_actor"):
        diagnosis = told(sample(name))
        assert diagnosis.root
        assert diagnosis.root.level == "unknown"
        assert diagnosis.failed


def test_an_unknown_error_before_known_consequences_is_shown_as_unknown() -> None:
    diagnosis = told(sample("unknown_traceback"))
    assert diagnosis.root
    assert (diagnosis.root.id, diagnosis.root.level, diagnosis.root.line) == ("unknown", "unknown", 5)
    assert "FrobnicationError: the gadget came off" in diagnosis.root.finding.evidence
    assert {one.id for one in diagnosis.secondary} == {"engine-dead", "engine-start-failed"}


def test_the_exception_of_a_worker_under_ray_is_the_cause() -> None:
    """Shutting down, the engine connects to Ray once more and fails to end the worker that is gone."""
    root = root_of(sample("vllm_ray_worker_exception").text)
    assert (root.id, root.level) == ("unknown", "unknown")
    assert "TypeError: '>=' not supported" in root.finding.evidence


def test_the_first_of_chained_exceptions_counts() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nFooError: first\n\n'
        "During handling of the above exception, another exception occurred:\n\nBarError: second\n"
    )
    assert root_of(text).finding.evidence == "FooError: first"


def test_the_words_of_a_rank_program_count_less_than_the_line_they_quote() -> None:
    line = "OSError: [Errno 98] Address already in use"
    assert root_of(f'{{"cluster": "rank", "stage": "ended", "t": 1.0, "why": "{line}", "exit": 1}}\n{line}\n').line == 2


SLOW = "spark1:1:1 [0] NCCL INFO Using network Socket\n"
READY = "INFO:     Application startup complete.\n"


def test_sockets_that_were_asked_for_are_a_note() -> None:
    """NCCL's lines of two H200 over virtual Ethernet, with `transport: socket` in the recipe."""
    text = "spark1:9:9 [0] NCCL INFO NET/IB : No device found.\n" + SLOW
    levels = [{one.level for one in explain([source("log", text)], sockets=asked).findings} for asked in (False, True)]
    assert levels[0] & {"fault", "warning"}
    assert levels[1] == {"note"}


WAITS = sample("vllm_shm_broadcast_wait").text
HEALTHY, OUT_OF_MEMORY = sample("vllm_start_healthy").text, sample("vllm_cuda_oom").text
RETRY = "[2026-03-01 10:00:00,100 W 1 1] rpc_client.h:153: Failed to connect to GCS at address 10.0.0.1:6379\n"
JOINED = "2026-03-01 10:00:09,744 SUCC scripts.py:1082 -- Ray runtime started.\n"
START = "2026-08-01T{}:00:00Z (APIServer pid=1) INFO 08-01 11:00:02 [a.py:1] vLLM API server version 0.27.1\n"
END = "2026-08-01T11:10:01Z RuntimeError: Engine core initialization failed. Failed core proc(s): {}\n"
SERVING = "ERROR 11-28 04:00:00 [serving_chat.py:250] "
TEMPLATE = (
    f"{SERVING}Traceback (most recent call last):\n{SERVING}jinja2.exceptions.TemplateError: roles must alternate\n"
)
REFUSED = 'INFO:     192.168.1.5:50322 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request\n'
ASKED_TO_RUN = {"cluster": "rank", "stage": "before_serve", "t": 1.0, "words": ["echo", "No space left on device"]}
FOUND = {
    "slowness": (SLOW, ["fault nccl-socket"]),
    "slowness is no cause of an end": (SLOW + OUT_OF_MEMORY, ["fault cuda-oom", "fault nccl-socket"]),
    "slowness explains no death": (
        SLOW + sample("ray_worker_died_system_error").text,
        ["fault worker-died", "fault nccl-socket"],
    ),
    "a known cause leaves no unknown": (
        OUT_OF_MEMORY + "ERROR 05-20 20:35:30 [x.py:1] something odd\n",
        ["fault cuda-oom"],
    ),
    "a wait": (WAITS, ["warning shm-broadcast"]),
    "a wait that was overcome": (WAITS + READY, []),
    "a wait after it was ready": (READY + WAITS, ["warning shm-broadcast"]),
    "a try to join": (RETRY, ["fault ray-gcs-unreachable"]),
    "joined": (RETRY + JOINED, []),
    "an error line in a start that succeeds": (
        "(Worker pid=1) ERROR 03-01 10:00:00 [fa_utils.py:57] Cannot use FA version 2\n" + READY,
        [],
    ),
    "a traceback in it": (
        "ERROR 03-01 10:00:00 [serving.py:9] jinja2.exceptions.TemplateError: odd\n" + READY,
        ["note unknown-overcome"],
    ),
    "a restart that fails again": (
        HEALTHY + sample("vllm_free_memory_check").text,
        ["fault free-memory-check"],
    ),
    "ten minutes since the last start": (START.format("09") + START.format("11") + END, ["fault vllm-ready-timeout"]),
    "two hours since it": (START.format("09") + END, ["unknown engine-start-failed"]),
    "what a rank is asked to run": (json.dumps(ASKED_TO_RUN) + "\n", []),
    "a request that is refused": (HEALTHY + TEMPLATE + REFUSED, ["note unknown-overcome"]),
    "a request that ends it": (HEALTHY + TEMPLATE, ["unknown unknown"]),
}


@pytest.mark.parametrize(("text", "right"), FOUND.values(), ids=FOUND)
def test_what_counts(text: str, right: list[str]) -> None:
    assert found(text) == right


def test_what_was_overcome_is_named() -> None:
    assert [one.id for one in told(WAITS + READY).files[0].normal] == ["shm-broadcast"]


def test_normal_notices_are_named_as_such() -> None:
    for name, id in (("vllm_tp_exceeds_gpus", "tp-exceeds-local"), ("nccl_info_gdr_disabled_normal", "no-gpudirect")):
        file = told(sample(name)).files[0]
        assert [one.id for one in file.normal] == [id]
        assert file.normal[0].finding.what


def test_levels_and_messages_of_log_lines() -> None:
    line = read_line("2026-05-20T20:35:26Z (EngineCore pid=6) ERROR 05-20 20:35:26 [core.py:1] ValueError: x")
    assert (line.level, line.message) == ("ERROR", "ValueError: x")
    assert read_line("ValueError: x").message == "ValueError: x"
    assert read_line("2026-13-40T99:00:00Z x").time is None
    assert read_line("Feb 29 10:00:00 host kernel: x").time is not None


@pytest.mark.parametrize("t", ["NaN", "Infinity", "-1e14", "1e300"])
def test_a_time_that_is_none_does_not_end_the_diagnosis(t: str) -> None:
    line = f'{{"cluster": "rank", "stage": "ended", "t": {t}, "exit": 1, "why": "CUDA out of memory"}}\n'
    assert read_line(line).time is None
    for text in (line, f"0001-01-01T00:00:00Z {FIRST}\n"):
        late = replace(source("spark1.txt", text), ahead_s=0.5)
        assert explain([late, source("spark2.txt", f"2026-11-28T04:00:01Z {LATER}\n")]).failed


def test_lines_of_docker_s_own_file() -> None:
    line = read_line(
        '{"log":"ERROR 05-20 20:35:26 [x.py:1] FooError: y\\n","stream":"stderr","time":"2026-05-20T20:35:26.1Z"}'
    )
    assert (line.level, line.message, line.time is None) == ("ERROR", "FooError: y", False)
    assert read_line('{"log":"broken').message == '{"log":"broken'
    assert read_line('{"log":"{\\"log\\":\\"x\\"}","time":"2026-05-20T20:35:26.1Z"}').message


def rank_line(stamp: str, rank: int, exit: int, why: str) -> str:
    """What far/rank prints as it ends, as docker shows it."""
    told = {"cluster": "rank", "rank": rank, "stage": "ended", "t": 1.0, "why": why, "exit": exit}
    return f"2026-11-28T04:00:{stamp}Z {json.dumps(told)}\n"


@pytest.mark.parametrize("cause", ["no patch for this host", "ValueError: No available memory for the cache blocks."])
def test_what_a_rank_heard_of_another_comes_after_what_that_one_says(cause: str) -> None:
    """The peer tells it within a moment, the rank itself ends a second later."""
    why = f"before_serve sh exited with 3: {cause}"
    head = rank_line("01.0", 0, 75, f"peers did not join: rank 1 (192.168.100.12): {why}")
    worker = rank_line("02.0", 1, 3, why)
    for texts in ((head, worker), (worker, head)):
        assert f'"why": "{why}"' in root_of(*texts).finding.evidence
    assert root_of(head + worker).line == 2


def test_beside_what_failed_only_known_causes_count() -> None:
    """A host's journals have errors of their own, and the numbers of a host that serves look like trouble."""
    log = source("log", "2026-11-28T04:00:01Z INFO:     Application startup complete.\n", "spark1")
    kernel = "2026-11-28T0{}:00:00+0000 spark1 kernel: Out of memory: Killed process 42 (python3) total-vm:1kB\n"
    journal = '2026-11-28T05:00:00+0000 spark1 dockerd[1]: level=error msg="Handler for GET returned error"\n'
    memory = "MemTotal: 125829120 kB\nMemFree: 1024 kB\nMemAvailable: 9000000 kB\n"

    for text in (journal, memory, kernel.format(3)):
        assert not explain([log, source("beside", text, "spark1", beside=True)]).failed, text
    assert root_of(log, source("beside", kernel.format(5), "spark1", beside=True)).id == "kernel-oom"


FIRST = "ValueError: Free memory on device cuda:0 (3/121 GiB) on startup is less than desired"
LATER = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
XID = "kernel: NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
WELL = "INFO:     Application startup complete."
TIMES = {
    "with the year": ("2026-12-31T23:59:50Z", "2027-01-01T00:00:10Z"),
    "without": ("ERROR 12-31 23:59:50", "ERROR 01-01 00:00:10"),
    "the later one with the year": ("ERROR 12-31 23:59:50", "2027-01-01T00:00:10Z"),
    "in summer": ("ERROR 06-30 23:59:50", "ERROR 07-01 00:00:10"),
    "years apart": ("2024-07-01T00:00:00Z", "2026-02-01T00:00:00Z"),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("turned", [False, True])
def test_the_earlier_cause_is_the_root(turned: bool, times: tuple[str, str]) -> None:
    sources = [source("spark1.txt", f"{times[0]} {FIRST}\n", "spark1"), source("spark2.txt", f"{times[1]} {LATER}\n")]
    assert root_of(*(sources[::-1] if turned else sources)).finding.host == "spark1"


@pytest.mark.parametrize(("happened", "well", "root"), [(0, 1, None), (1, 0, "gpu-off-bus")])
def test_what_happened_before_the_server_was_well_is_past(happened: int, well: int, root: str | None) -> None:
    times = TIMES["with the year"]
    beside = source("spark2-kernel.txt", f"{times[happened]} spark2 {XID}\n", "spark2", beside=True)
    found = explain([beside, source("spark1.txt", f"{times[well]} {WELL}\n")]).root
    assert (found.id if found else None) == root


def test_ten_minutes_over_new_year_are_ten_minutes() -> None:
    start = "2026-12-31T23:55:00Z INFO 12-31 23:55:00 [api_server.py:1] vLLM API server version 0.19.0\n"
    assert found(start + END.replace("2026-08-01T11:10:01", "2027-01-01T00:05:05")) == ["fault vllm-ready-timeout"]
