import os
import sys
from pathlib import Path

import pytest
from facts_tools import ask, put_program, said, sample

from cluster.argv.question import Answer
from cluster.spark import gpu
from cluster.spark.fact import Missing
from cluster.spark.gpu import Gpu, GpuProcess

SPARK = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 4.03, 208, 40, 0, 0x0000000000000001, [N/A]\n"
NAMES = [names[0] for names in gpu.FIELDS]


def smi(text: str, exit_code: int = 0, fields: list[str | None] | None = None) -> Answer:
    asked = list(NAMES) if fields is None else fields
    return said({"gpu": {"value": {"fields": asked, "exit": exit_code, "said": text}}})


def test_a_spark_at_rest() -> None:
    assert gpu.parse(smi(SPARK)) == (Gpu("NVIDIA GB10", "580.95.05", None, None, 4.03, 208, 40, 0, (), idle=True),)


def test_recorded_memory_is_unknown_not_zero() -> None:
    rows = gpu.parse_query(
        sample("nvidia_smi_query_memory_na.csv"), ["memory.used", "memory.total", "utilization.memory"]
    )
    assert [gpu.read_number(cell) for row in rows for cell in row.values()] == [None, None, 0]


NO_NUMBERS = "[N/A]|N/A|Not Supported|[Not Supported]|[Unknown Error]||[GPU requires reset]|-|nan|1e400|٣"


def test_cells_that_are_numbers_and_those_that_are_none() -> None:
    for cell in (*NO_NUMBERS.split("|"), None):
        assert (gpu.read_number(cell), gpu.throttle_words(cell)) == (None, None)
    assert [gpu.read_number(cell) for cell in ("0", "45.12", "19135 MiB", "95 %")] == [0, 45.12, 19135, 95]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("0x0000000000000000", ()),
        ("0x1", ()),
        ("0x0000000000000004", ("power cap",)),
        ("0x0000000000000068", ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown")),
        ("0x0000000000000800", ("unknown reason 0x800",)),
    ],
)
def test_throttle_reasons_are_words(mask: str, words: tuple[str, ...]) -> None:
    assert gpu.throttle_words(mask) == words


def test_several_gpus_and_a_name_with_commas() -> None:
    text = (
        "NVIDIA RTX PRO 6000, Max-Q, Rev. A, 570.1, 1024, 97887, 300.5, 2411, 70, 96, 0x4, 300.00\n"
        "NVIDIA L4, 570.1, 0, 23034, Not Supported, [N/A], 33, 0, [N/A], 72.00\n"
    )
    name = "NVIDIA RTX PRO 6000, Max-Q, Rev. A"
    assert gpu.parse(smi(text)) == (
        Gpu(name, "570.1", 1024, 97887, 300.5, 2411, 70, 96, ("power cap",), False, 300.0),
        Gpu("NVIDIA L4", "570.1", 0, 23034, None, None, 33, 0, None, None, 72.0),
    )


@pytest.mark.parametrize(
    ("text", "exit_code", "kind"),
    [
        (sample("nvml_driver_lib_mismatch.txt"), 18, "unreadable"),
        (sample("docker_nvml_unknown_error.txt"), 255, "unreadable"),
        ("No devices were found\n", 6, "absent"),
        ("No devices were found\n", 0, "absent"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n\n",
            9,
            "absent",
        ),
        ("Failed to initialize NVML: Insufficient Permissions\n", 4, "refused"),
        ("Unable to determine the device handle for GPU0: 000F:01:00.0: Unknown Error\n", 0, "unreadable"),
        ("", 0, "absent"),
        ("", 139, "unreadable"),
    ],
)
def test_a_failure_keeps_the_tools_words(text: str, exit_code: int, kind: str) -> None:
    found = gpu.parse(smi(text, exit_code))
    assert found.kind == kind
    assert " ".join(text.split()) in found.why


NVIDIA_SMI = """#!{python}
import sys
known = {known!r}
query = next(word for word in sys.argv if word.startswith("--query"))
fields = query.partition("=")[2].split(",")
for field in fields:
    if field not in known:
        print('Field "%s" is not a valid field to query.\\n' % field)
        sys.exit(2)
print(", ".join(known[field] for field in fields))
"""
KNOWN = dict(zip(NAMES, SPARK.strip().split(", "), strict=True))
KNOWN |= {"pid": "1", "process_name": "VLLM::EngineCore", "used_gpu_memory": "19135"}


def with_driver(tmp_path: Path, known: dict[str, str]) -> Answer:
    text = NVIDIA_SMI.format(python=sys.executable, known=known)
    return ask(gpu.question(), put_program(tmp_path / "bin", "nvidia-smi", text))


def test_asked_of_a_driver_that_knows_every_field(tmp_path: Path) -> None:
    assert gpu.parse(with_driver(tmp_path, KNOWN)) == gpu.parse(smi(SPARK))


def test_an_older_drivers_name_is_tried_next_and_an_unknown_field_loses_only_itself(tmp_path: Path) -> None:
    old = {name: cell for name, cell in KNOWN.items() if not name.startswith("clocks_event")}
    found = gpu.parse(with_driver(tmp_path, old | {"clocks_throttle_reasons.active": "0x4"}))
    assert found[0].throttle == ("power cap",)
    few = {name: cell for name, cell in KNOWN.items() if "reasons" not in name and name != "memory.used"}
    assert gpu.parse(with_driver(tmp_path, few)) == (
        Gpu("NVIDIA GB10", "580.95.05", None, None, 4.03, 208, 40, 0, None),
    )


def test_no_nvidia_smi(tmp_path: Path) -> None:
    answer = ask(gpu.question(), {"PATH": str(tmp_path)})
    for found in (gpu.parse(answer), gpu.parse_processes(answer)):
        assert found.kind == "absent"


ID = "0123456789abcdef" * 4


def apps(text: str, exit_code: int = 0) -> Answer:
    return said({"apps": {"value": {"exit": exit_code, "said": text, "containers": {"114687": ID}}}})


def test_recorded_reply_with_the_gpus_uuid() -> None:
    found = gpu.parse_processes(apps(sample("nvidia_smi_compute_apps.csv")))
    assert found == (GpuProcess(114687, "/usr/local/bin/python", 19135, ID),)


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("4711, VLLM::EngineCore, 98765", GpuProcess(4711, "VLLM::EngineCore", 98765, "")),
        ("4711, ray::RayWorkerWrapper, 98765 MiB", GpuProcess(4711, "ray::RayWorkerWrapper", 98765, "")),
        ("4711, /opt/a, b/my program, [N/A]", GpuProcess(4711, "/opt/a, b/my program", None, "")),
        ("4711, [Not Found], [Not Supported]", GpuProcess(4711, "[Not Found]", None, "")),
    ],
)
def test_rows(line: str, process: GpuProcess) -> None:
    assert gpu.parse_processes(apps(f"{line}\n")) == (process,)


def test_an_idle_gpu_has_no_processes_and_other_words_are_missing() -> None:
    assert [gpu.parse_processes(apps(text)) for text in ("", "\n", "No running processes found\n")] == [()] * 3
    assert gpu.parse_processes(apps("GPU is lost\n")) == Missing("nvidia-smi: GPU is lost")
    failed = gpu.parse_processes(apps(sample("nvml_driver_lib_mismatch.txt"), 18))
    assert failed == Missing("nvidia-smi: Failed to initialize NVML: Driver/library version mismatch")


def test_asked_with_a_process_of_this_machine(tmp_path: Path) -> None:
    script = f'#!/bin/sh\ncase "$1" in *apps=pid,process_name,used_gpu_memory) echo "{os.getpid()}, me, 5";; esac\n'
    found = gpu.parse_processes(ask(gpu.question(), put_program(tmp_path / "bin", "nvidia-smi", script)))
    assert [(one.pid, one.name, one.used_mib) for one in found] == [(os.getpid(), "me", 5)]
    assert (found[0].cpu_s or 0) >= sum(os.times()[:2]) - 1, "its own and its children's"
