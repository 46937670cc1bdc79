"""What a failed connection means, in a user's words."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.errors import ConnectionLostError, UnreachableError
from cluster.hosts.target import SshTarget


def set_up_failed(
    name: str, target: SshTarget, error: str, proxy_said: str, *, silent: bool, final: bool
) -> UnreachableError:
    """Between the open socket and the login. `silent`: sshd said nothing in time; `final`: trying again cannot help."""
    where = f"{target.hostname} port {target.port}"
    if proxy_said:
        return ConnectionLostError(
            f"{name}: the way to {where} failed: {proxy_said}", where=name, remedy=f"try: {target.proxy_command}"
        )
    if silent:
        return ConnectionLostError(
            f"{name} ({where}) accepts connections but its sshd does not answer",
            where=name,
            remedy="most likely it is out of memory and thrashing, not a network fault: wait, or power-cycle it",
        )
    if final:
        return UnreachableError(f"{name} ({where}): {error}", where=name, remedy="see sshd's allowed algorithms there")
    return ConnectionLostError(
        f"{name} ({where}) ended the connection while it was set up: {error or 'no reason given'}",
        where=name,
        remedy="see `journalctl -u ssh` there",
    )


def key_refused(
    name: str, target: SshTarget, tried: Sequence[str], locked: Sequence[str], why: str
) -> UnreachableError:
    """The host took none of our keys. `locked`: key files with a passphrase that no agent holds."""
    login = f"{target.user}@{target.hostname}"
    if locked and not tried:
        return UnreachableError(
            f"{name}: the key {locked[0]} has a passphrase and no agent holds it",
            where=login,
            remedy=f"ssh-add {locked[0]}",
        )
    offered = ", ".join([*tried, *(f"{path} (has a passphrase, not offered)" for path in locked)])
    port = "" if target.port == 22 else f"-p {target.port} "
    return UnreachableError(
        f"{name}: {login} accepts none of our keys ({offered or 'none found'})" + (f"; {why}" if why else ""),
        where=login,
        remedy=f"ssh-copy-id {port}{login}, or correct user and identity_file",
    )
