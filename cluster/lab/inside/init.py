"""First process of a simulated Spark: makes its root and sysfs (fake HCAs), starts sshd and dockerd, reaps.

    unshare --mount --uts --ipc --net --pid --fork --kill-child python3 init.py BOOT.json

BOOT.json is written by `cluster.lab.spark`. One line on stdin says that the wires are there. Standard library
only: it runs before anything of the host exists. When it is killed the kernel ends every process of the host.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
OWN = "/usr/local/lib/cluster-lab/bin"
PATH = f"{OWN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}


def mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); raises OSError with the target's name."""
    given = (source.encode(), str(target).encode(), kind.encode() or None, flags, data.encode() or None)
    if LIBC.mount(*given) != 0:
        raise OSError(ctypes.get_errno(), f"mount {kind or 'bind'} {source}: {os.strerror(ctypes.get_errno())}", target)


def bind(source: str | Path, target: Path) -> None:
    mount(str(source), target, flags=MS_BIND | MS_REC)


def limit_memory(memory: dict[str, Any]) -> None:
    """Enter cgroups of this host's own, as do all that it starts; containers get theirs beside, below the same limit.
    Swap counts too, where the kernel accounts for it."""
    for path in own_cgroups(memory):
        path.parent.mkdir(parents=True, exist_ok=True)
    for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
        file = Path(memory["group"], name)
        if file.exists():
            file.write_text(str(memory["limit"]))
    for path in own_cgroups(memory):
        path.write_text("0")


def own_cgroups(memory: dict[str, Any]) -> list[Path]:
    return [Path(top, "host/cgroup.procs") for top in (memory["group"], memory["pressure"]) if top]


def show_memory(memory: dict[str, Any]) -> None:
    """What /proc says of this host's memory: `daemon.py` keeps meminfo fresh, pressure is the kernel's own."""
    own = Path("/run/cluster-lab/memory")
    own.mkdir()
    (own / "cgroups").write_text("".join(f"{path}\n" for path in own_cgroups(memory)))
    (own / "meminfo").write_text(memory["meminfo"])
    bind(own / "meminfo", Path("/proc/meminfo"))
    if memory["pressure"]:
        (own / "pressure").touch()
        bind(Path(memory["pressure"], "memory.pressure"), own / "pressure")
        bind(own / "pressure", Path("/proc/pressure/memory"))


def make_root(boot: dict[str, Any]) -> Path:
    """The host's own root: what all hosts share below, what this one wrote above, Docker's data beside."""
    root = Path(boot["mountpoint"])
    layers = f"lowerdir={boot['lower']},upperdir={boot['upper']},workdir={boot['work']}"
    mount("overlay", root, "overlay", data=layers)
    mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=512m")
    (root / "run/lock").mkdir(mode=0o1777)
    (root / "run/sshd").mkdir(mode=0o755)
    (root / "var/lib/docker").mkdir(exist_ok=True)
    bind(boot["docker"], root / "var/lib/docker")
    for target, folders in boot["shown"].items():
        (root / target).mkdir(parents=True, exist_ok=True)
        if folders[1:]:
            mount("overlay", root / target, "overlay", MS_RDONLY, f"lowerdir={':'.join(folders)}")
        else:  # with what is mounted in it
            bind(folders[0], root / target)
            mount("", root / target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
    make_sys(root, boot)
    make_dev(root)
    for name, major, minor in boot["devices"]:
        make_node(root / "dev" / name, major, minor)
    return root


def make_sys(root: Path, boot: dict[str, Any]) -> None:
    """A sysfs that shows this host's netdevs, this machine's cgroups, and a Spark's RDMA tree and product name."""
    aside = root / "run/cgroup"
    aside.mkdir()
    bind("/sys/fs/cgroup", aside)
    mount("sysfs", root / "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    bind(aside, root / "sys/fs/cgroup")
    classes = root / "run/class"
    classes.mkdir()
    bind(root / "sys/class", classes)
    mount("tmpfs", root / "sys/class", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=755,size=8m")
    for real in classes.iterdir():
        if real.name not in ("infiniband", "dmi"):
            (root / "sys/class" / real.name).mkdir()
            bind(real, root / "sys/class" / real.name)
    make_rdma(root / "sys/class/infiniband", boot["ports"])
    dmi = root / "sys/class/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_name").write_text(boot["product"] + "\n")
    (dmi / "sys_vendor").write_text("NVIDIA\n")


def make_rdma(tree: Path, ports: list[dict[str, Any]]) -> None:
    """The part of /sys/class/infiniband that is read; `daemon.py` updates state and counters."""
    for port in ports:
        one = tree / port["hca"] / "ports/1"
        for folder in ("counters", "gids", "gid_attrs/types"):
            (one / folder).mkdir(parents=True)
        (tree / port["hca"] / "device/net" / port["netdev"]).mkdir(parents=True)
        (tree / port["hca"] / "fw_ver").write_text("28.45.4028\n")
        (one / "state").write_text("1: DOWN\n")
        (one / "rate").write_text("100 Gb/sec (4X EDR)\n")
        for name in ("port_xmit_data", "port_rcv_data"):
            (one / "counters" / name).write_text("0\n")
        for number, gid in enumerate(gids(port["mac"], port["address"])):
            (one / "gids" / str(number)).write_text(gid + "\n")
            (one / "gid_attrs/types" / str(number)).write_text(("IB/RoCE v1\n", "RoCE v2\n")[number % 2])


def gids(mac: str, address: str) -> list[str]:
    """The GID table of a port: link-local v1 and v2, then IPv4 v1 and v2, as sysfs writes them."""
    six = [int(part, 16) for part in mac.split(":")]
    six[0] ^= 2
    local = "fe80:0000:0000:0000:{:02x}{:02x}:{:02x}ff:fe{:02x}:{:02x}{:02x}".format(*six)
    return [local, local] + ([mapped_gid(address)] * 2 if address else [])


def mapped_gid(address: str) -> str:
    four = (int(part) for part in address.split("."))
    return "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*four)


def make_dev(root: Path) -> None:
    """A small /dev of its own, with its own /dev/shm and a stand-in for /dev/infiniband."""
    dev = root / "dev"
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name, minor in NODES.items():
        make_node(dev / name, 1, minor)
    make_node(dev / "tty", 5, 0)
    if Path("/dev/fuse").exists():
        make_node(dev / "fuse", 10, 229)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (dev / name).symlink_to(target)
    for name in ("pts", "shm", "mqueue", "infiniband"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
    (dev / "ptmx").symlink_to("pts/ptmx")
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=50%")
    for number in range(4):
        make_node(dev / "infiniband" / f"uverbs{number}", 1, 3)
    make_node(dev / "infiniband/rdma_cm", 1, 3)


def make_node(path: Path, major: int, minor: int) -> None:
    os.mknod(path, 0o20666, os.makedev(major, minor))
    path.chmod(0o666)


def enter(root: Path) -> None:
    """Make `root` the root, and unmount this machine's own."""
    old = root / "run/machine"
    old.mkdir()
    subprocess.run(["pivot_root", str(root), str(old)], check=True)
    os.chdir("/")
    if LIBC.umount2(b"/run/machine", 2) != 0:
        raise OSError(ctypes.get_errno(), "cannot unmount the machine's root")


def dress(boot: dict[str, Any]) -> None:
    """What a boot changes: host name, boot id, empty /tmp, the cable speeds that veth does not have."""
    subprocess.run(["hostname", boot["name"]], check=True)
    own = Path("/run/cluster-lab")
    own.mkdir(mode=0o755)
    (own / "boot_id").write_text(f"{uuid.uuid4()}\n")
    bind(own / "boot_id", Path("/proc/sys/kernel/random/boot_id"))
    (own / "speed").write_text("200000\n")
    for port in boot["ports"]:
        bind(own / "speed", Path("/sys/devices/virtual/net") / port["netdev"] / "speed")
    if boot["memory"]:
        show_memory(boot["memory"])
    subprocess.run("rm -rf /tmp/* /tmp/.[!.]*; chmod 1777 /tmp", shell=True, check=True)


def start_daemons(boot: dict[str, Any]) -> None:
    environment = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8"}
    for words in (["/usr/sbin/sshd", "-D", "-e"], boot["dockerd"]):
        with Path("/var/log", Path(words[0]).name + ".log").open("ab") as log:
            nothing = subprocess.DEVNULL
            subprocess.Popen(words, stdin=nothing, stdout=log, stderr=log, env=environment, start_new_session=True)


def main() -> None:
    boot = json.loads(Path(sys.argv[1]).read_text())
    os.umask(0o022)
    if boot["memory"]:
        limit_memory(boot["memory"])
    root = make_root(boot)
    if not sys.stdin.readline():
        sys.exit("the lab command went away")
    enter(root)
    dress(boot)
    start_daemons(boot)
    Path("/run/cluster-lab/booted").touch()
    print("booted", flush=True)
    nothing = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nothing, stream)
    while True:
        try:
            os.wait()
        except ChildProcessError:  # nothing left to reap for now
            time.sleep(1)


if __name__ == "__main__":
    main()
