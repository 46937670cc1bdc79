"""What a host's packet filter drops of what comes in, from `nft list ruleset` or `iptables -S` (root's to read)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network

from cluster.argv.question import Answer
from cluster.spark.fact import Missing
from cluster.spark.sections import read_section

_TABLE = re.compile(r"table (?P<family>\w+) \S+ \{")
_NETWORK = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\d.])", re.ASCII)
_DEVICE = re.compile(r'(?:iif(?:name)? |-i )"?([^"\s]+)')
_LAST_WORD = re.compile(r"(?:counter packets \d+ bytes \d+ )?(?:-j )?(?:drop|reject)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Firewall:
    """`drops`: the rule by which IPv4 packets that come in are dropped unless another rule says otherwise, empty when
    there is none. `passes`: the rules by which some are accepted, or sent to other rules."""

    drops: str = ""
    passes: tuple[str, ...] = ()

    def may_pass(self, netdev: str, network: IPv4Network) -> bool:
        """Whether something from a network on a netdev may come in: nothing is dropped, or some rule names either."""
        return not self.drops or any(_names(rule, netdev, network) for rule in self.passes)


def _names(rule: str, netdev: str, network: IPv4Network) -> bool:
    devices = [found[1] for found in _DEVICE.finditer(rule)]
    named = any(netdev.startswith(one.rstrip("*+")) if one[-1] in "*+" else netdev == one for one in devices)
    return named or any(network.overlaps(one) for one in _networks(rule))


def _networks(rule: str) -> Iterator[IPv4Network]:
    for found in _NETWORK.finditer(rule):
        try:
            network = ip_network(found[0], strict=False)
        except ValueError:
            continue
        if isinstance(network, IPv4Network):
            yield network


def parse(answer: Answer) -> Firewall | Missing:
    """Read the section `firewall` of far/others, which is the rules' text."""
    text = read_section(answer, "firewall", str)
    return text if isinstance(text, Missing) else parse_rules(text)


def parse_rules(text: str) -> Firewall:
    """Read a whole ruleset. No rules at all drop nothing."""
    return _iptables(text) if re.search(r"^-P INPUT ", text, re.MULTILINE) else _nft(text)


def _iptables(text: str) -> Firewall:
    rules = [line.strip() for line in text.splitlines()]
    own = [rule for rule in rules if rule.startswith("-A INPUT ")]
    drops = next((rule for rule in rules if re.match("-P INPUT (DROP|REJECT)", rule)), "")
    if not drops and own and re.fullmatch(r"-A INPUT -j (DROP|REJECT).*", own[-1]):
        drops = own[-1]
    return Firewall(drops, tuple(rule for rule in rules if rule.startswith("-A ") and not _LAST_WORD.search(rule)))


def _nft(text: str) -> Firewall:
    drops, family = "", ""
    passes: list[str] = []
    chain: list[str] = []
    for line in map(str.strip, text.splitlines()):
        table = _TABLE.match(line)
        family = table["family"] if table else family
        if line.startswith("chain "):
            chain = []
        elif line == "}" and chain and "hook input" in chain[0] and family in ("ip", "inet"):
            policy, last = chain[0], chain[-1]
            drops = drops or (policy if "policy drop" in policy else last if _LAST_WORD.match(last) else "")
        elif line:
            chain.append(line)
        if re.search(r"\b(accept|jump|goto)\b", line) and " hook " not in line:
            passes.append(line)
    return Firewall(drops, tuple(passes))
