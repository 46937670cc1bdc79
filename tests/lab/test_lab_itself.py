"""The lab is what it says: two hosts that look like Sparks, faults that can be seen and undone, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts_now import gpu_rows
from own_lab import CACHE, Lab, campaign
from waiting import eventually

Make = Callable[[str, str], None]
RUN = "docker run --rm --gpus all --network host --cap-add IPC_LOCK --ulimit memlock=-1 --device /dev/infiniband"
MODEL = "~/.cache/huggingface/hub/models--cluster-lab--tiny-gemma-4"
VERSIONS = "import importlib.metadata as m; print(*[m.version(n) for n in ('vllm', 'ray', 'transformers')])"


def test_up_prints_one_line_to_evaluate_and_again_changes_nothing(lab: Lab) -> None:
    boots = [lab.tell(host, "cat /proc/sys/kernel/random/boot_id") for host in ("spark1", "spark2")]
    began = time.monotonic()
    assert lab.must("up", "--hosts", "2") == f"export CLUSTER_INVENTORY={lab.inventory}\n"
    assert time.monotonic() - began < 5
    assert boots == [lab.tell(host, "cat /proc/sys/kernel/random/boot_id") for host in ("spark1", "spark2")]
    assert re.fullmatch(r"spark1 .*  up\nspark2 .*  up\n", lab.must("status"))


def test_hosts_are_different_machines(lab: Lab) -> None:
    for command in (
        "hostname",
        "cat /etc/machine-id",
        "cat /proc/sys/kernel/random/boot_id",
        "docker info -f '{{.ID}}'",
    ):
        one, two = (lab.tell(host, command) for host in ("spark1", "spark2"))
        assert one != two, command
    lab.tell("spark1", "touch /dev/shm/mine /tmp/mine ~/mine")
    assert lab.tell("spark2", "ls /dev/shm /tmp ~ | grep -c mine || true") == "0"
    assert "spark1" not in lab.tell("spark2", "ps axww -o args")


def test_host_sees_nothing_of_this_machine(lab: Lab, tmp_path: Path) -> None:
    assert lab.ssh("spark1", f"ls {tmp_path}").returncode != 0
    assert lab.ssh("spark1", f"ls {lab.root}").returncode != 0


def test_user_is_not_root_and_may_use_docker_and_sudo(lab: Lab) -> None:
    assert lab.tell("spark1", "id -u") == "1000"
    assert "docker" in lab.tell("spark1", "id -Gn").split()
    assert lab.tell("spark1", "sudo -n id -u") == "0"


def test_everything_that_is_simulated_says_so(lab: Lab) -> None:
    assert "simulated" in lab.tell("spark1", "cat /sys/class/dmi/id/product_name")
    for command in ("nvidia-smi", "nvidia-smi -L", "nvidia-smi --query-gpu=name --format=csv,noheader"):
        assert "simulated" in lab.tell("spark1", command), command


def test_fabric_carries_jumbo_frames_and_counters_follow_it(lab: Lab) -> None:
    read = "cat /sys/class/infiniband/rocep1s0f1/ports/1/counters/port_{xmit,rcv}_data"
    before = [int(word) for word in lab.tell("spark1", read).split()]
    lab.tell("spark1", "ping -q -c 100 -i 0.002 -M do -s 8972 192.168.100.12")
    time.sleep(0.5)
    after = [int(word) for word in lab.tell("spark1", read).split()]
    for grown in (b - a for a, b in zip(before, after, strict=True)):
        assert 100 * 9000 / 4 <= grown <= 110 * 9100 / 4


def test_one_cable_two_twins_up(lab: Lab) -> None:
    shown = lab.tell("spark1", "cd /sys/class/infiniband; grep -H . */ports/1/state; ls -d */device/net/*")
    states = ["1: DOWN", "4: ACTIVE", "1: DOWN", "4: ACTIVE"]
    hcas = ["roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1"]
    netdevs = ["enP2p1s0f0np0", "enP2p1s0f1np1", "enp1s0f0np0", "enp1s0f1np1"]
    rows = [f"{hca}/ports/1/state:{state}" for hca, state in zip(hcas, states, strict=True)]
    rows += [f"{hca}/device/net/{netdev}" for hca, netdev in zip(hcas, netdevs, strict=True)]
    assert sorted(shown.splitlines()) == sorted(rows)


def test_containers_get_gpu_infiniband_and_engine(lab: Lab) -> None:
    assert lab.tell("spark1", f"{RUN} --entrypoint nvidia-smi cluster-lab/vllm:real -L").startswith(
        "GPU 0: NVIDIA GB10"
    )
    assert lab.ssh("spark1", "docker run --rm --entrypoint nvidia-smi cluster-lab/vllm:real -L").returncode == 127
    for image in ("real", "quick"):
        assert (
            lab.tell("spark1", f'{RUN} --entrypoint python3 cluster-lab/vllm:{image} -c "{VERSIONS}"').count(".") >= 6
        )
    refused = lab.ssh("spark1", f'{RUN} --entrypoint python3 cluster-lab/vllm:no-ray -c "{VERSIONS}"')
    assert "No package metadata was found for ray" in refused.stderr


def test_hosts_hold_the_same_images(lab: Lab) -> None:
    command = "docker image inspect -f '{{.Id}}' cluster-lab/vllm:real cluster-lab/vllm:quick cluster-lab/vllm:no-ray"
    one, two = (lab.tell(host, command).split() for host in ("spark1", "spark2"))
    assert one == two
    assert len(set(one)) == 3


def test_missing_model_can_be_downloaded(lab: Lab) -> None:
    lab.tell("spark2", f"mv {MODEL} ~/was")
    hf = "docker run --rm --network host --user 1000:1000 -e HOME=/tmp -e HF_HOME=/hf -v ~/.cache/huggingface:/hf"
    hf += " --entrypoint hf cluster-lab/vllm:real download"
    lab.tell("spark2", f"{hf} cluster-lab/tiny-gemma-4 --revision main")
    assert_equal_folders(lab, "~/was", MODEL)
    lab.tell("spark2", f"rm -rf {MODEL} && mv ~/was {MODEL}")
    lab.tell("spark2", f"mv {MODEL}-moe ~/was && {hf} cluster-lab/tiny-gemma-4-moe --revision main")
    assert_equal_folders(lab, "~/was", f"{MODEL}-moe")
    lab.tell("spark2", f"rm -rf {MODEL}-moe && mv ~/was {MODEL}-moe")
    assert "requires approval" in lab.ssh("spark2", f"{hf} cluster-lab/gated-gemma-4").stderr
    assert lab.ssh("spark2", f"{hf} cluster-lab/none-such").returncode != 0


def test_gpu_rows_are_real_processes_of_that_host(lab: Lab) -> None:
    start = "docker run -d --name rows --gpus all -v ~/.cache/huggingface:/hf:ro -e HF_HOME=/hf cluster-lab/vllm:quick"
    lab.tell("spark1", f"{start} serve cluster-lab/tiny-gemma-4")

    def memory_mib() -> int:
        return int((re.findall(r", (\d+) MiB$", gpu_rows(lab, "spark1")) or [0])[0])

    try:
        eventually(lambda: memory_mib() > 60, 30, lambda: f"the engine takes its memory: {gpu_rows(lab, 'spark1')}")
        pid, name, _ = gpu_rows(lab, "spark1").split(", ")
        assert name == "VLLM::EngineCore"
        assert lab.tell("spark1", f"cat /proc/{pid}/comm") == "VLLM::EngineCor"
        inside = "docker exec rows nvidia-smi --query-compute-apps=pid --format=csv,noheader"
        assert lab.tell("spark1", inside) == ""
    finally:
        lab.tell("spark1", "docker rm -f rows")


def assert_equal_folders(lab: Lab, one: str, other: str) -> None:
    """The same files with the same content on spark2, links followed; `trees` is the hub tool's own cache."""
    done = lab.ssh("spark2", f"diff -r -x trees {one} {other}")
    assert (done.returncode, done.stdout) == (0, ""), done


def test_reboot_ends_containers_and_keeps_files(lab: Lab) -> None:
    lab.tell(
        "spark2", "docker run -d --name sleeper --entrypoint sleep cluster-lab/vllm:real infinity; touch ~/kept /tmp/x"
    )
    before = lab.tell("spark2", "cat /proc/sys/kernel/random/boot_id")
    lab.must("break", "spark2", "reboot")
    assert lab.tell("spark2", "cat /proc/sys/kernel/random/boot_id") != before
    assert lab.tell("spark2", "docker inspect -f '{{.State.Status}}' sleeper; ls ~/kept") == "exited\n/home/spark/kept"
    assert lab.ssh("spark2", "ls /tmp/x").returncode != 0
    assert lab.tell("spark2", "docker rm -f sleeper; ping -q -c1 192.168.100.11 >/dev/null && echo linked").endswith(
        "linked"
    )


def test_several_faults_are_mended_newest_first(lab: Lab, broken: Make) -> None:
    for fault in ("no-ray", "no-image", "mtu", "killed"):
        broken("spark2", fault)
    lab.must("mend", "spark2")
    wanted = lab.tell("spark1", "docker image inspect -f '{{.Id}}' cluster-lab/vllm:real")
    assert lab.tell("spark2", "docker image inspect -f '{{.Id}}' cluster-lab/vllm:real") == wanted
    assert lab.tell("spark2", "cat /sys/class/net/enp1s0f1np1/mtu") == "9000"


def test_wrong_words_are_refused(lab: Lab) -> None:
    for words, code in (
        (("break", "spark9", "mtu"), "host-unknown"),
        (("break", "spark1", "mtuu"), "lab-fault-unknown"),
        (("break", "spark1"), "argument-missing"),
        (("up", "--hosts", "0"), "lab-size"),
    ):
        done = lab.command(*words)
        assert (done.returncode, f"[{code}]" in done.stderr) == (2, True), done
    assert len(lab.must("break", "--list").splitlines()) >= 20


def test_not_root_is_told_so(lab: Lab) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        words = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "cluster.cli.main", "lab", "up"]
        done = subprocess.run([*words, "--dir", f"{folder}/lab"], capture_output=True, text=True)
        assert done.returncode == 2
        assert "[lab-unsupported]" in done.stderr
        assert not list(Path(folder).iterdir())


def lab_processes(root: Path) -> list[int]:
    """Processes that have the lab's directory in their words, this one's children left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{root}".encode() in text and b"pytest" not in text:
            found.append(int(entry.name))
    return found


def test_killed_lab_is_cleaned_by_the_next_up(lab: Lab) -> None:
    for pid in lab_processes(lab.root):
        os.kill(pid, signal.SIGKILL)
    assert "spark1" in lab.must("status")
    lab.must("up", "--hosts", "2")
    assert lab.tell("spark2", "docker version -f '{{.Server.Version}}'")


@pytest.mark.parametrize("after_s", [campaign(0.3), campaign(0.6), 1.0, campaign(1.5), campaign(2.2)])
def test_up_killed_half_way_is_repaired(lab: Lab, after_s: float) -> None:
    lab.must("down")
    words = [sys.executable, "-m", "cluster.cli.main", "lab", "up", "--dir", str(lab.root)]
    up = subprocess.Popen(words, env={**os.environ, "CLUSTER_LAB_CACHE": CACHE}, stdout=subprocess.DEVNULL)
    time.sleep(after_s)
    up.kill()
    up.wait()
    lab.must("up", "--hosts", "2")
    for host in ("spark1", "spark2"):
        assert lab.tell(host, f"{RUN} --entrypoint echo cluster-lab/vllm:real hello") == "hello"
        assert "models--cluster-lab--tiny-gemma-4" in lab.tell(host, "ls ~/.cache/huggingface/hub").split()


def test_down_leaves_nothing(lab: Lab) -> None:
    lab.tell("spark1", "docker run -d --entrypoint sleep cluster-lab/vllm:real infinity")
    lab.must("break", "spark2", "killed")
    number = json.loads((lab.root / "lab.json").read_text())["number"]
    lab.must("down")
    assert lab_processes(lab.root) == []
    assert not Path(f"/sys/class/net/cllab{number}").exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/cluster-lab-{number}"))
    assert str(lab.root) not in Path("/proc/self/mountinfo").read_text()
    assert not (lab.root / "hosts").exists()
    lab.must("down")
    lab.must("up", "--hosts", "2")
