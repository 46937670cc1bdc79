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

CONNECT_TIMEOUT_S = 5.0
Options = Mapping[str, Sequence[str]]
"""What `ssh -G` prints: the values of each key (in lower case), in order."""


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

    @property
    def key_names(self) -> tuple[str, str]:
        """The same, and the name under which a key is trusted too."""
        return self.key_name, self.host_key_alias or self.hostname


def ssh_options(words: Sequence[str], timeout_s: float) -> dict[str, list[str]]:
    """What `ssh -G` prints. Raises OSError when there is no ssh, SubprocessError when it fails or does not end."""
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace", "timeout": timeout_s, "check": True}
    return parse_options(
        subprocess.run(["ssh", "-G", *words], stdin=subprocess.DEVNULL, capture_output=True, **how).stdout
    )


def parse_options(text: str) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options


def ssh_knows(name: str) -> bool:
    """Whether a name leads somewhere: a Host block of ssh's configuration changes it, or it resolves."""
    with suppress(OSError, subprocess.SubprocessError):
        if ssh_options(["--", name], 10)["hostname"][0].lower() != name.lower():
            return True
    try:
        return bool(socket.getaddrinfo(name, 22, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False


def resolve(name: str, entry: HostEntry) -> SshTarget:
    """What to connect to for an inventory entry. Raises UsageError with what ssh says when it cannot be read."""
    identity = str(Path(entry.identity_file).expanduser()) if entry.identity_file else ""
    where = f"host {name}"
    if identity and not Path(identity).is_file():
        what = f"key file not found: {entry.identity_file}"
        remedy = "correct identity_file in the inventory"
        raise UsageError(what, code="ssh-key-file", where=where, remedy=remedy)
    given = (("-p", entry.port), ("-l", entry.user), ("-i", identity), ("-J", entry.jump))
    words = [word for flag, value in given if value for word in (flag, str(value))]
    try:
        options = ssh_options([*words, "--", entry.address], 30)
    except OSError:
        remedy = "install OpenSSH's client (openssh-client)"
        raise UsageError("ssh not found on this machine", code="ssh-missing", remedy=remedy) from None
    except subprocess.SubprocessError as error:
        late = "no answer within 30 s; a `Match exec` or a name that cannot be looked up?"
        why = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else late
        what = f"ssh cannot read its configuration for {entry.address}: {why}"
        remedy = "check ~/.ssh/config and the host's entry in the inventory"
        raise UsageError(what, code="ssh-config", where=where, remedy=remedy) from None
    target = read_options(options, entry.address)
    if identity:
        target = replace(target, identity_files=(identity,), identities_only=True)
    if entry.known_hosts_file:
        target = replace(target, known_hosts=(str(Path(entry.known_hosts_file).expanduser()),))
    command, jumps = (options.get(key, ["none"])[0] for key in ("proxycommand", "proxyjump"))
    if command != "none":
        tokens = {"h": target.hostname, "n": entry.address, "p": str(target.port), "r": target.user}
        return replace(target, proxy_command=expand(command, tokens))
    return target if jumps == "none" else replace(target, proxy_command=jump_command(jumps, target, entry))


def read_options(options: Options, address: str) -> SshTarget:
    """The target in ssh's options for `address`, without its proxy."""
    one = {key: values[0] for key, values in options.items()}
    user, hostname, port = one["user"], one["hostname"], one["port"]
    tokens = {"d": str(Path.home()), "h": hostname, "n": address, "p": port, "r": user, "u": getpass.getuser()}
    tokens |= {"l": socket.gethostname(), "L": socket.gethostname().split(".")[0], "i": str(os.getuid())}

    def paths(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(str(Path(expand(value, tokens)).expanduser()) for value in values if value != "none")

    agent = one.get("identityagent", "SSH_AUTH_SOCK")
    if agent == "SSH_AUTH_SOCK" or agent.startswith("$"):
        agent = os.environ.get(agent.strip("${}"), "")
    else:
        agent = "".join(paths([agent]))
    known = [*options["userknownhostsfile"], *options["globalknownhostsfile"]]
    # ssh -G writes several paths with blanks between and no quotes; a path that holds blanks is one that exists
    split = [path for value in known for path in ([value] if Path(value).expanduser().exists() else value.split())]
    timeout, alias = one.get("connecttimeout", "none"), one.get("hostkeyalias", "none")
    return SshTarget(
        hostname=hostname,
        port=int(port),
        user=user,
        identity_files=paths(options.get("identityfile", ())),
        identities_only=one.get("identitiesonly") == "yes",
        agent=agent,
        host_key_alias="" if alias == "none" else alias,
        known_hosts=paths(split),
        connect_timeout_s=CONNECT_TIMEOUT_S if timeout in ("none", "0") else float(timeout),
    )


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Replace ssh's `%x` tokens (ssh_config(5), TOKENS); unknown ones stay."""
    parts = text.split("%%")
    for letter, value in tokens.items():
        parts = [part.replace(f"%{letter}", value) for part in parts]
    return "%".join(parts)


def jump_command(jumps: str, target: SshTarget, entry: HostEntry) -> str:
    """The proxy command for jump hosts: `ssh -W` through the last, as OpenSSH itself does.

    It never prompts; the inventory's key and known hosts of the host count for its jump hosts too.
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
    with suppress(OSError, IndexError, ValueError):
        fields = io.BytesIO(b64decode(Path(path).read_text().split("-----")[2])[len(b"openssh-key-v1\0") :])
        for _ in ("cipher", "kdf", "kdf options"):
            fields.read(int.from_bytes(fields.read(4), "big"))
        fields.read(4)  # the number of keys
        return fields.read(int.from_bytes(fields.read(4), "big"))
    return b""
