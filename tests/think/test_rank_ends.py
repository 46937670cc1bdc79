"""far/rank.py: which line of an engine's output says why it ended."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnosis_tools import sample

RANK = Path(__file__).parents[2] / "cluster/far/rank.py"
AVX = "FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
# vLLM 0.22 over a worker of its own; places shortened
REFUSED = f"""\
(Worker pid=37) ERROR 11-28 09:12:40 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=37) ERROR 11-28 09:12:40 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=37) ERROR 11-28 09:12:40 [multiproc_executor.py:1063] NotImplementedError: {AVX}
(EngineCore pid=26) ERROR 11-28 09:12:40 [core.py:1168] EngineCore failed to start.
(EngineCore pid=26) ERROR 11-28 09:12:40 [core.py:1168]     raise RuntimeError(
(EngineCore pid=26) ERROR 11-28 09:12:40 [core.py:1168] RuntimeError: Worker failed with error '{AVX}', please check \
the stack trace above for the root cause
(EngineCore pid=26) ERROR 11-28 09:12:42 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly \
(exit code: None), shutting down executor.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: UserWarning: resource_tracker: There appear to be 1 leaked
  warnings.warn('resource_tracker: There appear to be %d '"""
KILLED = """\
(EngineCore pid=26) ERROR 11-28 09:12:42 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly \
(exit code: -9), shutting down executor.
(EngineCore pid=26) ERROR 11-28 09:12:43 [core.py:1168] RuntimeError: cancelled
RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.168.100.12]:4711"""

# vLLM 0.24 on a real GPU, without the guard of __main__ that a spawned process needs; shortened
EMPTY_FIRST = """\
(EngineCore pid=739) RuntimeError:
(EngineCore pid=739)         An attempt has been made to start a new process before the
(EngineCore pid=739)         current process has finished its bootstrapping phase.
(EngineCore pid=739)
(APIServer pid=8)     raise RuntimeError(
(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"""

UNDER_RAY = "\n".join(line.partition(" ")[2] for line in sample("vllm_ray_worker_exception").text.splitlines())


@pytest.fixture(scope="module")
def cause_line() -> Callable[[list[str]], str]:
    before = list(sys.path)
    try:
        found: Callable[[list[str]], str] = runpy.run_path(str(RANK))["cause_line"]
        return found
    finally:
        sys.path[:] = before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (REFUSED, f"NotImplementedError: {AVX}"),
        (REFUSED.replace("NotImplementedError: ", ""), AVX),
        (REFUSED.replace("Worker failed with", "Something"), f"RuntimeError: Something error '{AVX}', please check"),
        (KILLED, "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."),
        ("ERROR first\nTraceback\nValueError: no\n  warnings.warn(", "ValueError: no"),
        (EMPTY_FIRST, "RuntimeError: An attempt has been made to start a new process before the current process has"),
        (UNDER_RAY, "TypeError: '>=' not supported between instances"),
        ("all well\n    raise RuntimeError(\nexit code 3", "exit code 3"),
        ("loading\nstill loading", "still loading"),
    ],
    ids=[
        "worker-raised",
        "its-exception-is-gone",
        "exited-after-exception",
        "killed",
        "exception",
        "empty-first-line",
        "worker-of-ray",
        "source-line",
        "nothing",
    ],
)
def test_line_that_tells_why_an_engine_ended(cause_line: Callable[[list[str]], str], text: str, line: str) -> None:
    assert cause_line([row.strip() for row in text.splitlines()]).startswith(line)


def test_no_output(cause_line: Callable[[list[str]], str]) -> None:
    assert cause_line([]) == "no output"
