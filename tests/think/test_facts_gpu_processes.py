import os
from pathlib import Path

import pytest
from facts_tools import ask, put_program, said, sample

from cluster.argv.question import Answer
from cluster.spark import gpu
from cluster.spark.fact import Missing
from cluster.spark.gpu import GpuProcess

ID = "0123456789abcdef" * 4


def told(text: str, exit_code: int = 0) -> Answer:
    return said({"apps": {"value": {"exit": exit_code, "said": text, "containers": {"114687": ID}}}})


def test_recorded_reply_with_the_gpus_uuid() -> None:
    found = gpu.parse_processes(told(sample("nvidia_smi_compute_apps.csv")))
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
    assert gpu.parse_apps(f"{line}\n", {}) == (process,)


@pytest.mark.parametrize("text", ["", "\n", "No running processes found\n"])
def test_an_idle_gpu_has_no_processes(text: str) -> None:
    assert gpu.parse_processes(told(text)) == ()


def test_other_words_are_missing() -> None:
    assert gpu.parse_processes(told("GPU is lost\n")) == Missing("nvidia-smi: GPU is lost")
    failed = gpu.parse_processes(told(sample("nvml_driver_lib_mismatch.txt"), 18))
    assert failed == Missing("nvidia-smi: Failed to initialize NVML: Driver/library version mismatch")


def test_asked_with_a_process_of_this_machine(tmp_path: Path) -> None:
    script = f'#!/bin/sh\ncase "$1" in *apps=pid,process_name,used_gpu_memory) echo "{os.getpid()}, me, 5";; esac\n'
    found = gpu.parse_processes(ask(gpu.question(), put_program(tmp_path / "bin", "nvidia-smi", script)))
    assert not isinstance(found, Missing)
    assert [(one.pid, one.name, one.used_mib) for one in found] == [(os.getpid(), "me", 5)]
    assert (found[0].cpu_s or 0) >= sum(os.times()[:2]) - 1, "its own and its children's"
