"""What a name means to ssh: asked of `ssh -G`, since paramiko's own reader knows less (Match, Include, tokens)."""

from __future__ import annotations

import getpass
import io
import os
import shlex
import socket
import subprocess
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster.config.inventory import HostEntry
from cluster.errors import UsageError


def ssh_knows(name: str) -> bool:
    """Whether a name leads somewhere: a Host block of ssh's configuration changes it, or it resolves."""
    with suppress(OSError, subprocess.TimeoutExpired):
        options = parse_options(_run_ssh(["ssh", "-G", "--", name], timeout_s=10).stdout)
        if options.get("hostname", [name])[0].lower() != name.lower():
            return True
    try:
        return bool(socket.getaddrinfo(name, 22, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def _run_ssh(words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "timeout": timeout_s, "check": False}
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, **how)


CONNECT_TIMEOUT_S = 5.0
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Everything needed to open one SSH connection. Paths are absolute."""

    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    agent: str = ""  # the agent's socket; "" for none
    proxy_command: str = ""  # for a shell, complete; "" to connect directly
    host_key_alias: str = ""
    known_hosts: tuple[str, ...] = ()
    connect_timeout_s: float = CONNECT_TIMEOUT_S

    @property
    def key_name(self) -> str:
        """The name under which known_hosts has this host's key."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.hostname if self.port == 22 else f"[{self.hostname}]:{self.port}"


def resolve(name: str, entry: HostEntry) -> SshTarget:
    """What to connect to for an inventory entry. Raises UsageError with what ssh says when it cannot be read."""
    identity = str(Path(entry.identity_file).expanduser()) if entry.identity_file else ""
    if identity and not Path(identity).is_file():
        raise UsageError(
            f"key file not found: {entry.identity_file}",
            code="ssh-key-file",
            where=f"host {name}",
            remedy="correct identity_file in the inventory",
        )
    words = ["ssh", "-G"]
    for flag, value in (("-p", entry.port), ("-l", entry.user), ("-i", identity), ("-J", entry.jump)):
        if value:
            words += [flag, str(value)]
    try:
        done = _run_ssh([*words, "--", entry.address], timeout_s=30)
        why = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = "no answer within 30 s; a `Match exec` or a name that cannot be looked up?"
    except OSError:
        raise UsageError(
            "ssh not found on this machine", code="ssh-missing", remedy="install OpenSSH's client (openssh-client)"
        ) from None
    if why:
        raise UsageError(
            f"ssh cannot read its configuration for {entry.address}: {why}",
            code="ssh-config",
            where=f"host {name}",
            remedy="check ~/.ssh/config and the host's entry in the inventory",
        )
    options = parse_options(done.stdout)
    target = read_options(options, entry.address)
    if identity:
        target = replace(target, identity_files=(identity,), identities_only=True)
    if entry.known_hosts_file:
        target = replace(target, known_hosts=(str(Path(entry.known_hosts_file).expanduser()),))
    [command, *_], [jumps, *_] = options.get("proxycommand", ["none"]), options.get("proxyjump", ["none"])
    if command != "none":
        tokens = {"h": target.hostname, "n": entry.address, "p": str(target.port), "r": target.user}
        return replace(target, proxy_command=expand(command, tokens))
    return target if jumps == "none" else replace(target, proxy_command=jump_command(jumps, target, entry))


def parse_options(text: str) -> dict[str, list[str]]:
    """The output of `ssh -G` (one `key value` a line, keys in lower case, repeated keys kept in order)."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options


def read_options(options: Mapping[str, Sequence[str]], address: str) -> SshTarget:
    """The target in ssh's options for `address`, without its proxy."""

    def one(key: str, default: str = "") -> str:
        return (options.get(key) or [default])[0]

    user = one("user") or getpass.getuser()
    hostname = one("hostname") or address
    port = int(one("port", "22"))
    tokens = {"d": str(Path.home()), "h": hostname, "n": address, "p": str(port), "r": user, "u": getpass.getuser()}
    tokens |= {"l": socket.gethostname(), "L": socket.gethostname().split(".")[0], "i": str(os.getuid())}

    def paths(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(str(Path(expand(value, tokens)).expanduser()) for value in values if value not in ("none", ""))

    agent = one("identityagent", "SSH_AUTH_SOCK")
    if agent == "SSH_AUTH_SOCK" or agent.startswith("$"):
        agent = os.environ.get(agent.strip("${}"), "")
    else:
        agent = "".join(paths([agent]))
    known = [*options.get("userknownhostsfile", ()), *options.get("globalknownhostsfile", ())]
    # ssh -G writes several paths with blanks between and no quotes; a path that holds blanks is one that exists
    split = [path for value in known for path in ([value] if Path(value).expanduser().exists() else value.split())]
    timeout = one("connecttimeout", "none")
    return SshTarget(
        hostname=hostname,
        port=port,
        user=user,
        identity_files=paths(options.get("identityfile") or DEFAULT_KEYS),
        identities_only=one("identitiesonly") == "yes",
        agent=agent,
        host_key_alias=one("hostkeyalias") if one("hostkeyalias") != "none" else "",
        known_hosts=paths(split or DEFAULT_KNOWN_HOSTS),
        connect_timeout_s=float(timeout) if timeout.isdigit() and timeout != "0" else CONNECT_TIMEOUT_S,
    )


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace ssh's `%x` tokens (ssh_config(5), TOKENS); unknown ones stay."""
    parts = text.split("%%")
    for letter, value in tokens.items():
        parts = [part.replace(f"%{letter}", value) for part in parts]
    return "%".join(parts)


def jump_command(jumps: str, target: SshTarget, entry: HostEntry) -> str:
    """What carries the connection through jump hosts: `ssh -W` through the last, as OpenSSH itself does.

    It asks no questions; the inventory's key and known hosts of the host count for its jump hosts too.
    """
    *before, last = jumps.split(",")
    words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={target.connect_timeout_s:.0f}"]
    if entry.known_hosts_file:
        words += ["-o", f'UserKnownHostsFile="{target.known_hosts[0]}" ~/.ssh/known_hosts']
    if entry.identity_file:
        words += ["-i", target.identity_files[0]]
    if before:
        words += ["-J", ",".join(before)]
    to = f"[{target.hostname}]:{target.port}" if ":" in target.hostname else f"{target.hostname}:{target.port}"
    return shlex.join([*words, "-W", to, "--", last if last.startswith("ssh://") else f"ssh://{last}"])


def public_key(path: str) -> bytes:
    """The public half of a private key, from the file beside it or its own (OpenSSH's PROTOCOL.key); or b""."""
    with suppress(OSError, IndexError, ValueError):
        return b64decode(Path(f"{path}.pub").read_text().split()[1])
    try:
        lines = Path(path).read_text().split("-----")[2]
        fields = io.BytesIO(b64decode(lines)[len(b"openssh-key-v1\0") :])
        for _ in ("cipher", "kdf", "kdf options"):
            fields.read(int.from_bytes(fields.read(4), "big"))
        fields.read(4)  # the number of keys
        return fields.read(int.from_bytes(fields.read(4), "big"))
    except (OSError, IndexError, ValueError):
        return b""
