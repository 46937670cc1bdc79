"""Which host keys are known for a target, and what to say when the shown one is not trusted."""

from __future__ import annotations

from cluster.errors import UnreachableError
from cluster.hosts.known_hosts import KnownKey, fingerprint, is_named, judge, lines_for, read_known_hosts
from cluster.hosts.target import SshTarget

# what a host is asked to show for each kind of key in known_hosts
ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


class Trust:
    """The host keys known for one target."""

    def __init__(self, name: str, target: SshTarget) -> None:
        self._name = name
        self._target = target
        self._names = tuple(dict.fromkeys([target.key_name, target.host_key_alias or target.hostname]))
        self._keys = read_known_hosts(target.known_hosts)

    def order(self, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Host key algorithms with those first whose keys are known, so that the host shows one that we can check."""
        kinds = {known.kind for name in self._names for known in lines_for(self._keys, name)}
        wanted = {algorithm for kind in kinds for algorithm in ALGORITHMS.get(kind, (kind,))}
        return tuple(sorted(algorithms, key=lambda algorithm: algorithm not in wanted))

    def check(self, kind: str, key: bytes) -> None:
        """Raise UnreachableError unless the shown key is the known one."""
        verdict = judge(self._keys, self._names, kind, key)
        if verdict.is_trusted:
            return
        if verdict.by and verdict.is_revoked:
            raise UnreachableError(
                f"{self._name}: its host key {fingerprint(key)} is marked as revoked",
                where=_place(verdict.by),
                remedy="do not connect; ask whoever marked it",
            )
        if verdict.by and verdict.is_changed:
            raise self._changed(verdict.by, key)
        raise self._unknown(kind, key, verdict.by)

    def _changed(self, known: KnownKey, key: bytes) -> UnreachableError:
        file, name = known.file, self._names[0]
        return UnreachableError(
            f"{self._name}: the host key has changed: known {fingerprint(known.key)}, shown {fingerprint(key)}",
            where=_place(known),
            remedy=f"if the host was set up anew: ssh-keygen -R '{name}' -f {file}, then {self._add()};"
            " if not, somebody may be in between",
        )

    def _unknown(self, kind: str, key: bytes, other: KnownKey | None) -> UnreachableError:
        what = f"{self._name}: unknown host key {fingerprint(key)} ({kind})"
        if other:
            what += f"; only its {other.kind} key is known ({_place(other)})"
        elif any(known.marker == "@cert-authority" and is_named(known, self._names[0]) for known in self._keys):
            what += "; known_hosts names an authority for it, which is not used here"
        return UnreachableError(what, where=self._name, remedy=f"compare the fingerprint, then: {self._add()}")

    def _add(self) -> str:
        target = self._target
        address = target.hostname
        if target.port != 22:
            address = f"[{address}]:{target.port}" if ":" in address else f"{address}:{target.port}"
        return f"cluster inventory add {self._name} {target.user}@{address}"


def _place(known: KnownKey) -> str:
    return f"{known.file}:{known.line}"
