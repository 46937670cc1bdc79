"""A host with a limit of memory: it holds for processes and containers together, and /proc says so in both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_lab import Lab
from waiting import eventually

GIB = 2
PYTHON = "docker run --rm -i --entrypoint python3 cluster-lab/vllm:real -"
READ = """
import os, time
def read(row):
    return next(int(line.split()[1]) >> 10 for line in open("/proc/meminfo") if line.startswith(row + ":"))
"""
ALLOCATE = """
before = read("MemAvailable")
held = b"x" * (400 << 20)
time.sleep(0.3)
during = read("MemAvailable")
del held
time.sleep(0.3)
print(before - during, before - read("MemAvailable"))
"""
READ_FILE = """
before, free = read("MemAvailable"), read("MemFree")
with open("/file", "wb") as file:
    for _ in range(400):
        file.write(os.urandom(1 << 20))
for _ in range(2):
    with open("/file", "rb") as file:
        while file.read(1 << 20):
            pass
time.sleep(0.3)
print(before - read("MemAvailable"), free - read("MemFree"))
"""
TAKE_ALL = "held = [b'x' * (64 << 20) for _ in range(64)]"
HALF = "import re; text = open('/proc/meminfo').read(); assert re.fullmatch(r'(\\w+: +\\d+ kB\\n)+', text), text"


@pytest.fixture(scope="module")
def limited(lab: Lab) -> Iterator[Lab]:
    if not Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists():
        pytest.skip("a limit of memory requires cgroup v1's memory controller")
    lab.must("memory", "spark1", f"{GIB}")
    yield lab
    lab.must("memory", "spark1", "0")


def python(lab: Lab, text: str) -> list[int]:
    """Numbers that a program prints in a container of spark1."""
    return [int(word) for word in lab.tell("spark1", f"{PYTHON} <<'END'\n{READ}{text}\nEND").split()]


def stalled_us(lab: Lab, before: str = "") -> int:
    """How long something waited for memory, since the boot."""
    found = re.search(r"some .*total=(\d+)", lab.tell("spark1", f"{before}cat /proc/pressure/memory"))
    assert found
    return int(found[1])


def test_host_and_container_show_the_limit(limited: Lab) -> None:
    for where in ("", "docker run --rm --entrypoint cat cluster-lab/vllm:real /proc/meminfo | grep -v none; "):
        shown = limited.tell("spark1", f"{where}cat /proc/meminfo")
        assert re.findall(r"MemTotal: +(\d+) kB", shown) == [f"{GIB << 20}"] * (2 if where else 1)
        assert re.findall(r"SwapTotal: +(\d+) kB", shown) == ["0"] * (2 if where else 1)
    assert limited.tell("spark1", "free -m").split()[7] == f"{GIB << 10}"
    assert limited.tell("spark2", "grep MemTotal /proc/meminfo") in Path("/proc/meminfo").read_text()
    assert re.search(rf"spark1 .*  up  memory: {GIB} GiB \(.*simulated.*\)\n", limited.must("status"))


def test_allocation_in_a_container_is_seen_there_and_page_cache_is_not(limited: Lab) -> None:
    taken, left = python(limited, ALLOCATE)
    assert 380 < taken < 420
    assert left < 20
    available, free = python(limited, READ_FILE)
    assert available < 40
    assert free > 300


def test_meminfo_is_never_half_written(limited: Lab) -> None:
    limited.tell("spark1", f'for i in $(seq 40); do python3 -c "{HALF}" || exit 1; done')


def test_too_much_is_killed_on_this_host_alone(limited: Lab) -> None:
    boots = [limited.tell(host, "cat /proc/sys/kernel/random/boot_id") for host in ("spark1", "spark2")]
    before = stalled_us(limited)
    for where in (PYTHON, "python3 -"):
        done = limited.ssh("spark1", f"{where} <<'END'\n{TAKE_ALL}\nEND")
        assert done.returncode == 137, done
    assert stalled_us(limited) > before
    in_container = "docker run --rm --entrypoint cat cluster-lab/vllm:real /proc/pressure/memory; "
    assert stalled_us(limited, in_container) > before
    assert boots == [limited.tell(host, "cat /proc/sys/kernel/random/boot_id") for host in ("spark1", "spark2")]
    assert limited.tell("spark1", "docker version -f '{{.Server.Version}}'")


def test_limit_holds_after_faults_and_reboot(limited: Lab) -> None:
    for fault in ("docker-down", "no-ssh", "low-memory"):
        limited.must("break", "spark1", fault)
    limited.must("mend", "spark1")
    assert "/spark1/host" in limited.tell("spark1", "grep memory: /proc/self/cgroup /proc/$(pgrep -x dockerd)/cgroup")
    assert f"{GIB << 20} kB" in limited.tell("spark1", "grep MemTotal /proc/meminfo")
    assert python(limited, "print(read('MemAvailable'))")[0] > 1500
    limited.must("break", "spark1", "reboot")
    eventually(lambda: python(limited, ALLOCATE)[0] > 380, 10, lambda: "an allocation is seen after a reboot")


def test_wrong_sizes_are_refused(limited: Lab) -> None:
    for words, code in (
        (("spark9", "2"), "host-unknown"),
        (("spark1", "0.1"), "lab-memory"),
        (("spark1", "1e6"), "lab-memory"),
        (("spark1",), "argument-missing"),
    ):
        done = limited.command("memory", *words)
        assert (done.returncode, f"[{code}]" in done.stderr) == (2, True), done
    assert "memory" in limited.must("status")


def test_nothing_is_left_of_a_limit(limited: Lab) -> None:
    limited.must("memory", "spark1", "0")
    number = json.loads((limited.root / "lab.json").read_text())["number"]
    assert not list(Path("/sys/fs/cgroup").glob(f"*/cluster-lab-{number}/spark1/host"))
    assert limited.tell("spark1", "grep MemTotal /proc/meminfo") in Path("/proc/meminfo").read_text()
    assert limited.tell("spark1", "grep -c -e meminfo -e pressure /proc/self/mountinfo || true") == "0"
    assert "memory" not in limited.must("status")
