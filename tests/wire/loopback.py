"""A real sshd on loopback, and small tools around it."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster.config.inventory import HostEntry
from cluster.hosts.cancel import Cancel
from cluster.hosts.ssh import SshHost
from cluster.hosts.target import resolve

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
PATH = "/usr/local/bin:/usr/bin:/bin"


class Sshd:
    """A server in a folder: `login` is a shell script that runs "$SSH_ORIGINAL_COMMAND" its own way.

    `options` are lines of sshd_config after ours, `first` before ours (the first one counts); `programs` is a folder
    whose programs come before all others.
    """

    def __init__(
        self,
        folder: Path,
        *,
        login: str = "",
        kinds: tuple[str, ...] = ("ed25519",),
        options: str = "",
        first: str = "",
        programs: Path | None = None,
    ) -> None:
        self.folder = folder
        self.hosts: list[SshHost] = []
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        for kind in kinds:
            make_key(folder / f"host_{kind}", kind)
        self.key = make_key(folder / "id")
        self.port = free_port()
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("".join(f"{self.name} {public(folder / f'host_{kind}')}\n" for kind in kinds))
        force = ""
        if login:
            (folder / "login").write_text("#!/bin/sh\n" + login)
            (folder / "login").chmod(0o755)
            force = f"ForceCommand {folder}/login\n"
        path = f"{programs}:{PATH}" if programs else PATH
        (folder / "config").write_text(
            f"{first}Port {self.port}\nListenAddress 127.0.0.1\nAuthorizedKeysFile {folder}/id.pub\nStrictModes no\n"
            + "".join(f"HostKey {folder}/host_{kind}\n" for kind in kinds)
            + f"UsePAM no\nPidFile none\nMaxStartups 100\nSetEnv HOME={self.home} PATH={path}\n{force}{options}"
        )
        self.start()

    @property
    def name(self) -> str:
        return f"[127.0.0.1]:{self.port}"

    def start(self) -> None:
        """Serve; returns when connections are accepted."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.process = subprocess.Popen([SSHD, "-D", "-f", self.folder / "config", "-E", self.folder / "log"])
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError((self.folder / "log").read_text())

    def close_hosts(self) -> None:
        for host in self.hosts:
            host.close()
        self.hosts.clear()

    def stop(self) -> None:
        """End the listener; sessions live on."""
        self.process.terminate()
        self.process.wait()

    def entry(self, **more: Any) -> HostEntry:
        given: dict[str, Any] = {
            "address": "127.0.0.1",
            "port": self.port,
            "user": getpass.getuser(),
            "identity_file": str(self.key),
            "known_hosts_file": str(self.known_hosts),
        }
        return HostEntry(**{**given, **more})

    def host(self, name: str = "spark1", cancel: Cancel | None = None, **more: Any) -> SshHost:
        self.hosts.append(SshHost(name, resolve(name, self.entry(**more)), cancel))
        return self.hosts[-1]


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", path], check=True)
    return path


def public(path: Path) -> str:
    """Kind and key of a key pair, as known_hosts and authorized_keys write them."""
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


def free_port() -> int:
    """A port of loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def find_processes(mark: str) -> list[int]:
    """The processes with `mark` as one of their words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def becomes(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()
