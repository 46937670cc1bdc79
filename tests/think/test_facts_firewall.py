from ipaddress import ip_network
from pathlib import Path

import pytest
from facts_tools import put_program, run_far, said

from cluster.spark import processes
from cluster.spark.fact import Missing
from cluster.spark.processes import Firewall, parse_rules

NETWORK = ip_network("192.168.100.0/24")
DOCKER = """table ip nat {
	chain DOCKER {
		iifname "docker0" counter packets 0 bytes 0 return
	}
}
table ip filter {
	chain FORWARD {
		type filter hook forward priority filter; policy drop;
		counter packets 0 bytes 0 jump DOCKER-USER
	}
}
"""
UFW = """table ip6 filter {
	chain INPUT {
		type filter hook input priority filter; policy drop;
	}
}
table ip filter {
	chain ufw-user-input {
		tcp dport 22 counter packets 9 bytes 540 accept
	}
	chain INPUT {
		type filter hook input priority filter; policy drop;
		counter packets 19 bytes 2280 jump ufw-before-input
	}
}
"""
FIREWALLD = """table inet firewalld {
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname "lo" accept
		jump filter_INPUT_ZONES
		reject with icmpx admin-prohibited
	}
}
"""
IPTABLES = "-P INPUT ACCEPT\n-P FORWARD DROP\n-A INPUT -i lo -j ACCEPT\n-A INPUT -j DROP\n"


@pytest.mark.parametrize(
    "text", ["", DOCKER, "-P INPUT ACCEPT\n-P FORWARD DROP\n-A FORWARD -j DROP\n", UFW.partition("table ip filter")[0]]
)
def test_nothing_is_dropped_by_default(text: str) -> None:
    """What is forwarded is no matter of ours, nor IPv6."""
    found = parse_rules(text)
    assert found.drops == ""
    assert found.may_pass("enp1s0f1np1", NETWORK)


@pytest.mark.parametrize(
    ("text", "drops"),
    [
        (UFW, "type filter hook input priority filter; policy drop;"),
        (FIREWALLD, "reject with icmpx admin-prohibited"),
        (IPTABLES, "-A INPUT -j DROP"),
        ("-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n", "-P INPUT DROP"),
    ],
)
def test_what_no_rule_accepts_is_dropped(text: str, drops: str) -> None:
    found = parse_rules(text)
    assert found.drops == drops
    assert not found.may_pass("enp1s0f1np1", NETWORK)


@pytest.mark.parametrize(
    "rule",
    [
        'iifname "enp1s0f1np1" counter packets 3 bytes 9 accept',
        'iifname "enp1s0f*" accept',
        "ip saddr 192.168.100.12 accept",
        "ip saddr 192.168.0.0/16 tcp dport 1-65535 accept",
        'iifname "enp1s0f1np1" goto filter_IN_trusted',
    ],
)
def test_a_rule_that_speaks_of_the_fabric(rule: str) -> None:
    assert parse_rules(UFW.replace("tcp dport 22 counter packets 9 bytes 540 accept", rule)).may_pass(
        "enp1s0f1np1", NETWORK
    )


@pytest.mark.parametrize(
    "rule",
    ["-A INPUT -i enp1s0f1np1 -j ACCEPT", "-A INPUT -s 192.168.100.0/24 -j ACCEPT", "-A INPUT -i enp+ -j ACCEPT"],
)
def test_the_same_in_the_words_of_iptables(rule: str) -> None:
    assert parse_rules(IPTABLES.replace("-A INPUT -j DROP", f"{rule}\n-A INPUT -j DROP")).may_pass(
        "enp1s0f1np1", NETWORK
    )


def test_other_networks_do_not_count() -> None:
    text = UFW.replace("tcp dport 22", "ip saddr 10.0.0.0/8 tcp dport 22")
    assert not parse_rules(text).may_pass("enp1s0f1np1", NETWORK)


def test_without_sudo_it_is_not_known(plain_user: Path) -> None:
    env = put_program(plain_user / "bin", "sudo", "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    found = processes.parse_firewall(run_far("others", {"sections": ["firewall"]}, env))
    assert found == Missing("sudo: a password is required", "refused")


def test_rules_are_read_by_either_tool(tmp_path: Path) -> None:
    """Where there is no nft, iptables tells."""
    shown = '#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n'
    env = put_program(tmp_path / "bin", "sudo", shown) | {"PATH": f"{tmp_path / 'bin'}"}
    (tmp_path / "bin" / "sh").symlink_to("/bin/sh")
    put_program(tmp_path / "bin", "iptables", "#!/bin/sh\necho '-P INPUT DROP'\n")
    assert processes.parse_firewall(run_far("others", {"sections": ["firewall"]}, env)) == Firewall("-P INPUT DROP")


def test_recorded_reply() -> None:
    assert processes.parse_firewall(said({"firewall": {"value": "-P INPUT ACCEPT\n"}})) == Firewall()
