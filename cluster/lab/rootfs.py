"""Two small Debian root file systems: one that the hosts share, one for the image."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

from cluster.lab.place import Place
from cluster.lab.program import made_once, run
from cluster.lab.shape import HUB_URL, OUTSIDE, USER, Spark, management_of

SUITE = "bookworm"
HOST_PACKAGES = (
    *("python3", "openssh-server", "openssh-sftp-server", "docker.io", "iproute2", "iputils-ping"),
    *("procps", "sudo", "fish", "curl", "ca-certificates", "libfaketime"),
)
IMAGE_PACKAGES = ("python3", "ca-certificates", "libnuma1")
MAKING = "making the root file system of {} with debootstrap (about a minute, once)"
WEIGHT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info", "var/cache/apt", "var/lib/apt/lists")

SSHD_CONFIG = f"""HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UsePAM no
UseDNS no
PrintMotd no
MaxSessions 64
MaxStartups 64:30:128
ClientAliveInterval 15
Subsystem sftp /usr/lib/openssh/sftp-server
SetEnv HF_ENDPOINT={HUB_URL}
"""


def host_root(place: Place) -> Path:
    """The root that hosts share (read-only below each host's own writes), made once."""

    def make(fresh: Path) -> None:
        _debootstrap(place, fresh, HOST_PACKAGES)
        words = f"useradd --create-home --uid 1000 --shell /bin/bash --password * -G docker {USER}"
        run(["chroot", str(fresh), *words.split()])  # a user like the one a Spark is set up with
        sudoers = fresh / "etc/sudoers.d" / USER
        sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
        sudoers.chmod(0o440)
        for key in (fresh / "etc/ssh").glob("ssh_host_*"):
            key.unlink()

    return made_once(place.cache / "host-root", MAKING.format("hosts"), make)


def image_tar(place: Place) -> Path:
    def make(part: Path) -> None:
        root = place.cache / "image-root.part"
        _debootstrap(place, root, IMAGE_PACKAGES)
        (root / "opt/engine").mkdir(parents=True)
        run(["tar", "-C", str(root), "--exclude=./dev/*", "-cf", str(part), "."], timeout_s=300)
        shutil.rmtree(root)

    return made_once(place.cache / "image-root.tar", MAKING.format("images"), make)


def mirror() -> list[str]:
    """Where this machine gets Debian from, so that the lab needs no other source; none leaves it to debootstrap."""
    for path in (*Path("/etc/apt/sources.list.d").glob("*"), Path("/etc/apt/sources.list")):
        text = path.read_text(errors="replace") if path.is_file() else ""
        uris, suites = re.search(r"^URIs: *(\S+)", text, re.M), re.search(r"^Suites: *(.*)$", text, re.M)
        if uris and suites and SUITE in suites[1].split():
            return [uris[1]]
        if line := re.search(rf"^deb (?:\[[^]]*\] )?(\S+) {SUITE} main", text, re.M):
            return [line[1]]
    return []


def _debootstrap(place: Place, root: Path, packages: tuple[str, ...]) -> None:
    """A fresh root. Own mount and process namespaces: whatever a package starts or mounts ends with it."""
    shutil.rmtree(root, ignore_errors=True)
    archives = place.cache / "debs"
    archives.mkdir(parents=True, exist_ok=True)
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", f"--cache-dir={archives}"]
    run([*alone, *words, SUITE, str(root), *mirror()], log=place.log, timeout_s=900)
    for folder in WEIGHT:
        shutil.rmtree(root / folder, ignore_errors=True)


def host_files(spark: Spark, key: str) -> dict[str, tuple[str, int]]:
    """Files that differ between hosts, by path: (text, mode)."""
    name, outside = spark.name, f"{management_of(spark.lab, 2)} {OUTSIDE}"
    machine_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{spark.lab}.cluster-lab").hex
    names = f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n{outside}\n"
    return {
        "etc/hostname": (f"{name}\n", 0o644),
        "etc/hosts": (names, 0o644),
        "etc/resolv.conf": ("", 0o644),
        "etc/ssh/sshd_config": (SSHD_CONFIG, 0o644),
        "etc/machine-id": (f"{machine_id}\n", 0o444),
        f"home/{USER}/.ssh/authorized_keys": (key, 0o600),
    }
