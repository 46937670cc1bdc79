"""What a failed connection means, in a user's words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cluster.errors import ConnectionLostError, SilentError, UnreachableError
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


def no_program(name: str, code: int | None, said: str) -> UnreachableError:
    """The far program ended without saying what it should. `code`: the login shell's, None when the line is dead."""
    said = said.strip()[-400:]
    if code is None:
        return ConnectionLostError(f"the connection to {name} ended before the answer", where=name)
    if code in (1, 127) and "python3" in said and re.search("not found|unknown command", said, re.IGNORECASE):
        return UnreachableError(
            f"no python3 on {name}: {said.splitlines()[-1]}", where=name, remedy="there: sudo apt install python3"
        )
    return UnreachableError(
        f"{name} ran no program of ours: exit {code}" + (f"; it says: {said}" if said else ""),
        where=name,
        remedy="see that `python3 -V` works there over a plain ssh",
    )


def silent_host(name: str, seconds: float, *, changes: bool) -> SilentError:
    """No answer long after the deadline. Only for a change is that a lost answer; asking again would not help."""
    kind = ConnectionLostError if changes else SilentError
    return kind(
        f"{name} did not answer within {seconds:.0f} s",
        where=name,
        remedy="it may be thrashing, or the network is gone: ping it, wait, power-cycle it",
    )
