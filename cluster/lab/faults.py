"""Faults on purpose: `cluster lab break HOST FAULT`, undone by `cluster lab mend`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import UsageError
from cluster.lab import wires
from cluster.lab.engine import MODEL_FOLDER
from cluster.lab.images import NO_RAY, REAL, start_hosts
from cluster.lab.inside.init import mapped_gid
from cluster.lab.place import Place
from cluster.lab.rootfs import SSHD_CONFIG
from cluster.lab.shape import CABLED, FABRIC_MTU, PORTS, USER, Function, Spark
from cluster.lab.spark import (
    OWN,
    await_docker,
    await_ssh,
    dockerd_words,
    end,
    host_key,
    init_pid,
    inside,
    is_up,
    start_inside,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """A host that a fault is made on; `switch` is the process that holds the lab's switch."""

    place: Place
    spark: Spark
    switch: int

    @property
    def init(self) -> int:
        """The host's first process. Raises UsageError when the host is down."""
        pid = init_pid(self.place, self.spark)
        if pid is None:
            remedy = f"cluster lab mend {self.spark.name}"
            raise UsageError(f"{self.spark.name} is down", code="lab-down", remedy=remedy)
        return pid

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.init}/root")

    def shell(self, text: str, *words: str) -> str:
        """Run a line of sh on the host as root; `words` are its $1, $2, … Raises ClusterError when it fails."""
        return inside(self.init, ("sh", "-c", text, "sh", *words))


Act = Callable[[Scene], object]


@dataclass(frozen=True, slots=True)
class Fault:
    """`make` happens on `break`, `undo` on `mend`; it may find nothing left to undo, e.g. after a reboot.

    `instant` ones happen and are over.
    """

    what: str
    make: Act
    undo: Act
    instant: bool = False


def sh(text: str, *words: str) -> Act:
    """A line of sh on the host, as root."""
    return lambda scene: scene.shell(text, *words)


def steps(*acts: Act) -> Act:
    return lambda scene: [act(scene) for act in acts]


# Cables, addresses and counters


def cables(state: str, *ports: Function | None) -> Act:
    return lambda scene: wires.set_cables(scene.switch, scene.spark, ports, state)


def fabric_mtu(mtu: int) -> Act:
    return lambda scene: wires.ip_in(scene.init, [f"link set {port.netdev} mtu {mtu}" for port in CABLED])


def take_addresses(scene: Scene) -> None:
    give_addresses(scene)  # so that there is something to take
    wires.ip_in(scene.init, [f"addr del {scene.spark.fabric(port)}/24 dev {port.netdev}" for port in CABLED])
    take_gids(scene, CABLED)


def give_addresses(scene: Scene) -> None:
    wires.ip_in(scene.init, [f"addr replace {scene.spark.fabric(port)}/24 dev {port.netdev}" for port in CABLED])
    give_gids(scene, CABLED)


def take_gids(scene: Scene, ports: Sequence[Function]) -> None:
    """Remove the entries of IPv4 from the GID tables of these ports."""
    for port in ports:
        for number in (2, 3):
            (scene.root / f"sys/class/infiniband/{port.hca}/ports/1/gids/{number}").unlink(missing_ok=True)


def give_gids(scene: Scene, ports: Sequence[Function]) -> None:
    """Write the entries of IPv4, RoCE v1 and v2, of the ports that are cabled now, in the order of `CABLED`."""
    for port, cabled in zip(ports, CABLED, strict=True):
        for number, kind in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
            one = scene.root / f"sys/class/infiniband/{port.hca}/ports/1"
            (one / f"gids/{number}").write_text(mapped_gid(scene.spark.fabric(cabled)) + "\n")
            (one / f"gid_attrs/types/{number}").write_text(f"{kind}\n")


def recable(old: Sequence[Function], new: Sequence[Function]) -> Act:
    """The cable moves from one QSFP port to the other: addresses, GIDs and carrier."""

    def move(scene: Scene) -> None:
        wires.recable(scene.switch, scene.spark, scene.init, old, new)
        take_gids(scene, old)
        give_gids(scene, new)

    return move


def hold_counters(scene: Scene) -> None:
    scene.place.host(scene.spark.name).still.touch()


def free_counters(scene: Scene) -> None:
    scene.place.host(scene.spark.name).still.unlink(missing_ok=True)


# SSH, the user's rights, other programs

UNKNOWN_KEY = "unknown-key"
stop_sshd = sh("pkill -x sshd; true")
KEY = "/etc/ssh/ssh_host_ed25519_key"
SUDOERS = f"/etc/sudoers.d/{USER}"


def forget_host_key(scene: Scene) -> None:
    known = scene.place.known_hosts
    rows = [row for row in known.read_text().splitlines(True) if row.split()[0] != scene.spark.management]
    known.write_text("".join(rows))


def learn_host_key(scene: Scene) -> None:
    forget_host_key(scene)
    with scene.place.known_hosts.open("a") as known:
        known.write(host_key(scene.place, scene.spark))


def restart_sshd(scene: Scene) -> None:
    """End sshd with its sessions, and restart it."""
    stop_sshd(scene)
    start_inside(scene.init, "/usr/sbin/sshd", "-D", "-e")
    await_ssh(scene.spark)


def take_port(scene: Scene) -> None:
    start_inside(scene.init, "python3", "-m", "http.server", "8000", "--directory", "/srv")
    scene.shell("for i in $(seq 50); do ss -Hltn sport = :8000 | grep -q . && exit 0; sleep 0.1; done; exit 1")


# Docker, images, the model's files

KEPT = "cluster-lab/kept:real"
MODEL = f"/home/{USER}/.cache/huggingface/hub/{MODEL_FOLDER}"
KEPT_MODEL = "/var/lib/kept-model"
UNMANAGED = "stranger"
HOOK = f"/{OWN}/bin/nvidia-container-runtime-hook"

stop_docker = sh("pkill -TERM -x dockerd; while pgrep -x dockerd >/dev/null; do sleep 0.1; done")


def start_docker(scene: Scene) -> None:
    if not scene.shell("pgrep -x dockerd || true").strip():
        start_inside(scene.init, *dockerd_words(scene.spark))
    await_docker(scene.init)


def hook_moved(old: str, new: str) -> Act:
    """Docker asks once, when it starts, which drivers it has for `--gpus`."""
    return steps(stop_docker, sh(f"test ! -e {old} || mv {old} {new}"), start_docker)


def in_place_of_image(text: str, *words: str) -> Act:
    """Keep the real image under a second name; then do this."""
    keep = sh('docker image inspect "$2" >/dev/null 2>&1 || docker tag "$1" "$2"', REAL, KEPT)
    return steps(keep, sh(text, *words))


restore_image = sh(
    'if docker image inspect "$1" >/dev/null 2>&1; then docker tag "$1" "$2" && docker rmi "$1" >/dev/null; fi',
    KEPT,
    REAL,
)
restore_model = sh(f"test ! -e {KEPT_MODEL} || (rm -rf {MODEL} && mv {KEPT_MODEL} {MODEL})")
cut_model = sh(
    f"cp -a {MODEL} {KEPT_MODEL} && for f in {MODEL}/snapshots/*/*.safetensors; do"
    ' blob=$(readlink -f "$f"); truncate -s $(($(stat -c %s "$blob") / 2)) "$blob"; done'
)

# What is read: memory, clock, GPU

LITTLE_KIB = 1_500_000
GPU = "run/cluster-lab/gpu.json"
CLOCK_OFFSET_S = 300
OLLAMA_MODEL = "gemma3:27b"


def meminfo_with_little(text: str) -> str:
    """A /proc/meminfo that says the machine is full of other programs' memory."""
    for field, kib in (("MemFree", LITTLE_KIB // 3), ("MemAvailable", LITTLE_KIB), ("Cached", LITTLE_KIB)):
        text = re.sub(rf"^({field}:\s+)\d+", rf"\g<1>{kib}", text, flags=re.M)
    return text


empty_memory = sh(  # what shows a limit of memory stays mounted below
    'while grep -q " /cluster-lab/meminfo /proc/meminfo " /proc/self/mountinfo; do umount /proc/meminfo; done'
)


def fill_memory(scene: Scene) -> None:
    """On the host, not in its containers."""
    empty_memory(scene)
    (scene.root / "run/cluster-lab/meminfo").write_text(meminfo_with_little((scene.root / "proc/meminfo").read_text()))
    scene.shell("mount --bind /run/cluster-lab/meminfo /proc/meminfo")


def set_clock(scene: Scene) -> None:
    """Programs of new SSH sessions see the clock five minutes ahead; Docker and what runs already do not."""
    library = scene.shell("ls /usr/lib/*/faketime/libfaketime.so.1").strip()
    ahead = f"LD_PRELOAD={library} FAKETIME=+{CLOCK_OFFSET_S}"
    give_sshd_config(scene, SSHD_CONFIG.replace("SetEnv ", f"SetEnv {ahead} "))


def give_sshd_config(scene: Scene, text: str = SSHD_CONFIG) -> None:
    (scene.root / "etc/ssh/sshd_config").write_text(text)
    restart_sshd(scene)


def gpu_reads(**figures: Any) -> Act:
    """What the simulated nvidia-smi reads before it answers."""
    return lambda scene: (scene.root / GPU).write_text(json.dumps(figures))


def use_gpu(scene: Scene) -> None:
    start_inside(scene.init, "python3", "-c", "import time; time.sleep(1e9)", "unmanaged-on-gpu")
    wait = "for i in $(seq 50); do pgrep -f '[u]nmanaged-on-gpu' && exit 0; sleep 0.1; done; exit 1"
    gpu_reads(apps={scene.shell(wait).split()[0]: 19_135})(scene)


def heal_gpu(scene: Scene) -> None:
    (scene.root / GPU).unlink(missing_ok=True)
    scene.shell("pkill -f '[u]nmanaged-on-gpu'; true")


def load_ollama(scene: Scene) -> None:
    if not scene.shell("pgrep -f '[o]llama serve' || true").strip():
        start_inside(scene.init, "ollama", "serve")
    line = 'for i in $(seq 100); do ollama run "$1" 2>/dev/null && exit 0; sleep 0.1; done; exit 1'
    scene.shell(line, OLLAMA_MODEL)


# The host


def cut_power(scene: Scene) -> None:
    """Every process of the host is gone at once; its cables are dark."""
    end(scene.place, [scene.spark])


def power_on(scene: Scene) -> None:
    """The host boots with the files it had."""
    if not is_up(scene.place, scene.spark):
        start_hosts(scene.place, scene.switch, [scene.spark])


FAULTS = {
    "link-down": Fault("the fabric's cable is pulled: both twins down", cables("down", *CABLED), cables("up", *CABLED)),
    "one-twin": Fault("the second twin of the fabric is down", cables("down", CABLED[1]), cables("up", *CABLED)),
    "unreachable": Fault("the management cable is pulled: SSH times out", cables("down", None), cables("up", None)),
    "mtu": Fault("MTU 1500 on this host's fabric netdevs", fabric_mtu(1500), fabric_mtu(FABRIC_MTU)),
    "no-ipv4": Fault("no IPv4 address on the fabric netdevs", take_addresses, give_addresses),
    "other-port": Fault(
        "the cable is in port 0 here, in port 1 elsewhere", recable(CABLED, PORTS[:2]), recable(PORTS[:2], CABLED)
    ),
    "counters-still": Fault("the HCAs' byte counters stand still", hold_counters, free_counters),
    "host-key": Fault(  # as after a reinstallation; known_hosts keeps the old one
        "the host's SSH key has changed",
        steps(
            sh(f"test -e {KEY}.kept || (cp -p {KEY} {KEY}.kept && cp -p {KEY}.pub {KEY}.kept.pub)"),
            sh(f"rm {KEY} {KEY}.pub; ssh-keygen -q -t ed25519 -N '' -f {KEY}"),
            restart_sshd,
        ),
        steps(sh(f"test ! -e {KEY}.kept || (mv {KEY}.kept {KEY} && mv {KEY}.kept.pub {KEY}.pub)"), restart_sshd),
    ),
    UNKNOWN_KEY: Fault("the host's SSH key is not in known_hosts", forget_host_key, learn_host_key),
    "no-ssh": Fault("sshd is not running: connection refused", stop_sshd, restart_sshd),
    "no-docker": Fault(
        "the user is not in group docker",  # sessions that are open keep it
        sh(f"gpasswd -d {USER} docker >/dev/null 2>&1; true"),
        sh(f"gpasswd -a {USER} docker >/dev/null 2>&1"),
    ),
    "no-sudo": Fault(
        "sudo asks for a password",
        sh(f"rm -f {SUDOERS}"),
        sh('umask 227; rm -f "$2"; echo "$1 ALL=(ALL) NOPASSWD: ALL" >"$2"', USER, SUDOERS),
    ),
    "port-taken": Fault("another program listens on port 8000", take_port, sh("pkill -f 'http[.]server 8000'; true")),
    "docker-down": Fault("dockerd is not running", stop_docker, start_docker),
    "no-gpu": Fault(
        "Docker knows no GPU driver: --gpus all is refused",
        hook_moved(HOOK, f"{HOOK}.kept"),
        hook_moved(f"{HOOK}.kept", HOOK),
    ),
    "no-image": Fault(f"{REAL} is not on this host", in_place_of_image('docker rmi "$1"', REAL), restore_image),
    "no-ray": Fault(
        f"{REAL} names an image without Ray", in_place_of_image('docker tag "$1" "$2"', NO_RAY, REAL), restore_image
    ),
    "other-image": Fault(
        f"{REAL} names other content on this host",
        in_place_of_image(
            'printf "%s" "$1" | docker build -q -t "$2" -', f"FROM {KEPT}\nENV CLUSTER_LAB_OTHER=1\n", REAL
        ),
        restore_image,
    ),
    "no-model": Fault(
        "the model is not in the Hugging Face cache", sh(f"test ! -e {MODEL} || mv {MODEL} {KEPT_MODEL}"), restore_model
    ),
    "cut-model": Fault("the model's weight file ends half-way", cut_model, restore_model),
    UNMANAGED: Fault(
        "an unmanaged container runs",
        sh(f"docker run -d --name {UNMANAGED} --network host --gpus all --entrypoint sleep {REAL} infinity"),
        sh(f"docker rm -f {UNMANAGED} >/dev/null 2>&1; true"),
    ),
    "low-memory": Fault("MemAvailable reads 1.4 GiB", fill_memory, empty_memory),
    "clock": Fault(
        f"the clock is {CLOCK_OFFSET_S} s ahead for new SSH sessions (not for Docker)", set_clock, give_sshd_config
    ),
    "power-cap": Fault(  # the GPU that needs a power drain
        "the GPU is capped at 16 W and 640 MHz",
        gpu_reads(power_w=16.4, sm_mhz=640, utilization=96, temperature=47, reasons=["sw_power_cap"]),
        heal_gpu,
    ),
    "wedged": Fault(
        "nvidia-smi shows a hung engine: busy at 20 W",
        gpu_reads(power_w=20.3, sm_mhz=2405, utilization=95, temperature=51, reasons=[]),
        heal_gpu,
    ),
    "gpu-stranger": Fault("another program's process holds 19 GB of GPU memory", use_gpu, heal_gpu),
    "ollama": Fault(f"Ollama has {OLLAMA_MODEL} loaded", load_ollama, sh("pkill -f '[o]llama (serve|runner)'; true")),
    "killed": Fault("the host is off: nothing answers (mend boots it)", cut_power, power_on),
    "reboot": Fault(
        "the host reboots: new boot id, containers exited", steps(cut_power, power_on), steps(), instant=True
    ),
}
