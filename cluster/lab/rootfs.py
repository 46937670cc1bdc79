"""Two small Debian root file systems: one that the hosts share, one for the image."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path

from cluster.lab.place import Place
from cluster.lab.program import run, say
from cluster.lab.shape import HUB_URL, OUTSIDE, USER, Spark, outside_of

SUITE = "bookworm"
HOST_PACKAGES = (
    *("python3", "openssh-server", "openssh-sftp-server", "docker.io", "iproute2", "iputils-ping"),
    *("procps", "sudo", "fish", "curl", "ca-certificates", "libfaketime"),
)
IMAGE_PACKAGES = ("python3", "ca-certificates", "libnuma1")
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
    root = place.cache / "host-root"
    if not root.exists():
        fresh = _debootstrap(place, "host-root", HOST_PACKAGES)
        _make_user(fresh)
        for key in (fresh / "etc/ssh").glob("ssh_host_*"):
            key.unlink()
        fresh.rename(root)
    return root


def image_tar(place: Place) -> Path:
    """The image's root as a tar file, made once."""
    tar = place.cache / "image-root.tar"
    if not tar.exists():
        fresh = _debootstrap(place, "image-root", IMAGE_PACKAGES)
        part = place.cache / "image-root.tar.part"
        (fresh / "opt/engine").mkdir(parents=True)
        run(["tar", "-C", str(fresh), "--exclude=./dev/*", "-cf", str(part), "."], timeout_s=300)
        part.rename(tar)
        shutil.rmtree(fresh)
    return tar


def mirror() -> list[str]:
    """Where this machine gets Debian from, so that the lab needs no other source; none leaves it to debootstrap."""
    for path in (*Path("/etc/apt/sources.list.d").glob("*"), Path("/etc/apt/sources.list")):
        text = path.read_text(errors="replace") if path.is_file() else ""
        uris, suites = re.search(r"^URIs: *(\S+)", text, re.M), re.search(r"^Suites: *(.*)$", text, re.M)
        if uris and suites and SUITE in suites[1].split():
            return [uris[1]]
        line = re.search(rf"^deb (?:\[[^]]*\] )?(\S+) {SUITE} main", text, re.M)
        if line:
            return [line[1]]
    return []


def _debootstrap(place: Place, name: str, packages: tuple[str, ...]) -> Path:
    """A fresh root. Own mount and process namespaces: whatever a package starts or mounts ends with it."""
    say(f"making {name} with debootstrap (about a minute, once)")
    fresh = place.cache / f"{name}.part"
    shutil.rmtree(fresh, ignore_errors=True)
    archives = place.cache / "debs"
    archives.mkdir(parents=True, exist_ok=True)
    alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", f"--cache-dir={archives}"]
    run([*alone, *words, SUITE, str(fresh), *mirror()], log=place.log, timeout_s=900)
    for folder in WEIGHT:
        shutil.rmtree(fresh / folder, ignore_errors=True)
    return fresh


def _make_user(root: Path) -> None:
    """A user like the one a Spark is set up with: in group docker, sudo without a password."""
    words = f"useradd --create-home --uid 1000 --shell /bin/bash --password * -G docker {USER}"
    run(["chroot", str(root), *words.split()])
    sudoers = root / "etc/sudoers.d" / USER
    sudoers.write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)


def host_files(spark: Spark, key: str) -> dict[str, tuple[str, int, bool]]:
    """Files that differ between hosts, by path: (text, mode, owned by the user)."""
    name = spark.name
    machine_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{spark.lab}.cluster-lab").hex
    names = f"127.0.0.1 localhost\n127.0.1.1 {name}\n::1 localhost ip6-localhost\n"
    names += f"{outside_of(spark.lab)} {OUTSIDE}\n"
    return {
        "etc/hostname": (f"{name}\n", 0o644, False),
        "etc/hosts": (names, 0o644, False),
        "etc/resolv.conf": ("", 0o644, False),
        "etc/ssh/sshd_config": (SSHD_CONFIG, 0o644, False),
        "etc/machine-id": (f"{machine_id}\n", 0o444, False),
        f"home/{USER}/.ssh/authorized_keys": (key, 0o600, True),
    }
