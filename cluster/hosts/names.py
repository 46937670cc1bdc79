"""Does ssh know a name."""

from __future__ import annotations

import socket
import subprocess


def ssh_knows(name: str) -> bool:
    """Whether a name leads somewhere: a Host block of ssh's configuration changes it, or it resolves."""
    try:
        said = subprocess.run(
            ["ssh", "-G", "--", name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=False,
        )
        hostname = next((line.split()[1] for line in said.stdout.splitlines() if line.startswith("hostname ")), name)
        if hostname.lower() != name.lower():
            return True
    except (OSError, subprocess.TimeoutExpired, IndexError):
        pass
    try:
        return bool(socket.getaddrinfo(name, 22, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        return False
