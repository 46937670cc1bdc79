"""Faults of what is read: memory, clock, GPU."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cluster.lab.faults.fault import Fault, Scene
from cluster.lab.faults.login import restart_sshd
from cluster.lab.rootfs import SSHD_CONFIG
from cluster.lab.spark import start_inside

LITTLE_KIB = 1_500_000
GPU = "run/cluster-lab/gpu.json"
STRANGER_MIB = 19_135
CLOCK_OFFSET_S = 300
OLLAMA_MODEL = "gemma3:27b"


def meminfo_with_little(text: str) -> str:
    """A /proc/meminfo that says the machine is full of other programs' memory."""
    for field, kib in (("MemFree", LITTLE_KIB // 3), ("MemAvailable", LITTLE_KIB), ("Cached", LITTLE_KIB)):
        text = re.sub(rf"^({field}:\s+)\d+", rf"\g<1>{kib}", text, flags=re.M)
    return text


def fill_memory(scene: Scene) -> None:
    """MemAvailable reads 1.4 GiB on the host (not in its containers)."""
    empty_memory(scene)
    (scene.root / "run/cluster-lab/meminfo").write_text(meminfo_with_little(Path("/proc/meminfo").read_text()))
    scene.inside("mount", "--bind", "/run/cluster-lab/meminfo", "/proc/meminfo")


def empty_memory(scene: Scene) -> None:
    """Undo fill_memory."""
    scene.shell("while umount /proc/meminfo 2>/dev/null; do :; done")


def set_clock(scene: Scene) -> None:
    """Programs of new SSH sessions see the clock five minutes ahead; Docker and what runs already do not."""
    library = scene.shell("ls /usr/lib/*/faketime/libfaketime.so.1").strip()
    ahead = f"LD_PRELOAD={library} FAKETIME=+{CLOCK_OFFSET_S}"
    give_sshd_config(scene, SSHD_CONFIG.replace("SetEnv ", f"SetEnv {ahead} "))


def reset_clock(scene: Scene) -> None:
    """Undo set_clock."""
    give_sshd_config(scene, SSHD_CONFIG)


def give_sshd_config(scene: Scene, text: str) -> None:
    """Write sshd's configuration and start sshd again."""
    (scene.root / "etc/ssh/sshd_config").write_text(text)
    restart_sshd(scene)


def say_of_gpu(scene: Scene, **figures: Any) -> None:
    """What the simulated nvidia-smi reads before it answers."""
    (scene.root / GPU).write_text(json.dumps(figures))


def cap_power(scene: Scene) -> None:
    """The GPU that needs a power drain: 16 W at 640 MHz."""
    say_of_gpu(scene, power_w=16.4, sm_mhz=640, utilization=96, temperature=47, reasons=["sw_power_cap"])


def wedge(scene: Scene) -> None:
    """The figures of a hung engine: busy, high clock, little power."""
    say_of_gpu(scene, power_w=20.3, sm_mhz=2405, utilization=95, temperature=51, reasons=[])


def use_gpu(scene: Scene) -> None:
    """An unmanaged process holds GPU memory."""
    start_inside(scene.init, "python3", "-c", "import time; time.sleep(1e9)", "unmanaged-on-gpu")
    pid = scene.shell(
        "for i in $(seq 50); do pgrep -f '[u]nmanaged-on-gpu' && exit 0; sleep 0.1; done; exit 1"
    ).split()[0]
    say_of_gpu(scene, apps={pid: STRANGER_MIB})


def heal_gpu(scene: Scene) -> None:
    """Undo cap_power, wedge and use_gpu."""
    (scene.root / GPU).unlink(missing_ok=True)
    scene.shell("pkill -f '[u]nmanaged-on-gpu'; true")


def load_ollama(scene: Scene) -> None:
    """Ollama runs and holds a model in memory."""
    if not scene.shell("pgrep -f '[o]llama serve' || true").strip():
        start_inside(scene.init, "ollama", "serve")
    line = 'for i in $(seq 100); do ollama run "$1" 2>/dev/null && exit 0; sleep 0.1; done; exit 1'
    scene.shell(line, OLLAMA_MODEL)


def end_ollama(scene: Scene) -> None:
    """Undo load_ollama."""
    scene.shell("pkill -f '[o]llama (serve|runner)'; true")


FIGURE_FAULTS = (
    Fault("low-memory", "MemAvailable reads 1.4 GiB", fill_memory, empty_memory),
    Fault(
        "clock", f"the clock is {CLOCK_OFFSET_S} s ahead for new SSH sessions (not for Docker)", set_clock, reset_clock
    ),
    Fault("power-cap", "the GPU is capped at 16 W and 640 MHz", cap_power, heal_gpu),
    Fault("wedged", "nvidia-smi shows a hung engine: busy at 20 W", wedge, heal_gpu),
    Fault("gpu-stranger", "another program's process holds 19 GB of GPU memory", use_gpu, heal_gpu),
    Fault("ollama", f"Ollama has {OLLAMA_MODEL} loaded", load_ollama, end_ollama),
)
