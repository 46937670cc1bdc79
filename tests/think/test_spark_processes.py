"""Who else uses a host: engines, listeners, tenants, and what its firewall drops."""

import os
import socket
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from facts_tools import put, put_program, run_far, said

from cluster.spark import processes
from cluster.spark.fact import Missing, read_section
from cluster.spark.processes import NAMES, EngineProcess, Firewall, Listener, Tenant, parse_rules

ID = "0123456789abcdef" * 4
PAGE = os.sysconf("SC_PAGE_SIZE")


def put_engine(root: Path, pid: int, argv: list[str], *, comm: str = "x", cgroup: str = "0::/user.slice\n") -> None:
    put(
        root,
        {
            f"proc/{pid}/cmdline": "\0".join(argv) + "\0" if argv else "",
            f"proc/{pid}/comm": f"{comm}\n",
            f"proc/{pid}/statm": "900 300 100 1 0 200 0\n",
            f"proc/{pid}/cgroup": cgroup,
        },
    )


def section(root: Path, name: str, shape: Any) -> Any:
    return read_section(run_far("look", {"sections": [name], "root": f"{root}/"}), name, shape)


def engines(root: Path) -> Any:
    return section(root, "processes", tuple[EngineProcess, ...])


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["VLLM::Worker_TP0", "", ""], "VLLM::Worker_TP0"),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["ray::RayWorkerProc.execute_method"], "ray::RayWorkerProc.execute_method"),
        (["ray::IDLE"], "ray::IDLE"),
        (["/opt/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=x"], "raylet"),
        (["/opt/ray/core/src/ray/gcs/gcs_server", "--log_dir=x"], "gcs_server"),
        (["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "google/gemma-4-31B-it", "--api-key", "s"], "vllm serve"),
        (["python3.12", "-u", "/opt/v/bin/vllm", "serve", "m"], "vllm serve"),
        (["vllm", "serve", "m"], "vllm serve"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], "vllm serve"),
        (["/usr/bin/python3", "-u", "/opt/v/lib/ray/dashboard/agent.py", "--node-ip-address=x"], "ray agent"),
        (["python3", "-m", "ray.util.client.server", "--port=10001"], "ray agent"),
        (["/usr/bin/python3", "/usr/local/bin/ray", "start", "--block"], "ray start"),
    ],
)
def test_engine_processes_by_their_words(tmp_path: Path, argv: list[str], name: str) -> None:
    put_engine(tmp_path, 7, argv)
    assert engines(tmp_path) == (EngineProcess(7, name, 300 * PAGE, ""),)


def test_other_processes_are_none_of_it(tmp_path: Path) -> None:
    others = "bash -c vllm|docker exec x vllm serve|tail -f raylet.out|python3 tool.py --of vllm serve|vllm bench"
    for pid, argv in enumerate(("", "bash -c", *others.split("|"), "grep VLLM::EngineCore"), 7):
        put_engine(tmp_path, pid, argv.split())
    put_engine(tmp_path, 99, ["bash", "-c", "vllm serve m"])
    assert engines(tmp_path) == ()


def test_the_container_is_named_by_the_control_group(tmp_path: Path) -> None:
    groups = ["0::/system.slice/docker-ID.scope\n", "12:memory:/docker/ID\n0::/\n", "0::/../docker/ID/init\n"]
    for pid, group in enumerate([*groups, f"0::/docker/{'f' * 64}/docker/ID\n"]):
        put_engine(tmp_path, pid, ["raylet"], cgroup=group.replace("ID", ID))
    assert [one.container for one in engines(tmp_path)] == [ID] * 4


def test_a_zombie_one_of_foreign_bytes_and_one_that_vanishes(tmp_path: Path) -> None:
    put_engine(tmp_path, 6, [], comm="VLLM::EngineCor")
    put_engine(tmp_path, 7, ["raylet"])
    (tmp_path / "proc/7/cmdline").write_bytes(b"ray::\xff\x1b[31mred\0")
    (tmp_path / "proc/9").mkdir(parents=True)
    assert [one.name for one in engines(tmp_path)] == ["VLLM::EngineCor", "ray::?red"]


def told(*words: str, uid: int = 1000) -> tuple[Tenant, ...]:
    found = processes.parse(said({"tenants": {"value": [{"pid": 7, "uid": uid, "words": list(words)}]}}))
    assert not isinstance(found, Missing), found
    return found


@pytest.mark.parametrize(
    ("words", "uid", "kind", "name"),
    [
        (("/usr/local/bin/ollama", "runner", "--model"), 998, "ollama", "ollama"),
        (("/usr/lib/ollama/runners/cuda/ollama_llama_server", "--model", "x"), 998, "ollama", "ollama_llama_server"),
        (("/usr/bin/gnome-shell",), 1000, "desktop", "gnome-shell"),
        (("/usr/lib/xorg/Xorg", "vt2", "-displayfd"), 1000, "desktop", "Xorg"),
        (("/usr/bin/earlyoom", "-r", "3600"), 65534, "killer", "earlyoom"),
        (("/usr/bin/python3", "/usr/sbin/nohang", "--monitor"), 0, "killer", "nohang"),
        (("avahi-daemon: running [spark1-30.local]",), 110, "mdns", "spark1-30.local"),
    ],
)
def test_tenants(words: tuple[str, ...], uid: int, kind: str, name: str) -> None:
    assert told(*words, uid=uid) == (Tenant(kind, name, 7, uid),)


def test_no_tenants() -> None:
    """A server without a model, login screens (dynamic users among them), a helper."""
    rows = [("/usr/local/bin/ollama serve", 998), ("/usr/bin/ollama", 1000)]
    rows += [("/usr/bin/gnome-shell", 120), ("/usr/bin/gnome-shell", 60578)]
    assert [told(*words.split(), uid=uid) for words, uid in rows] == [()] * 4
    assert told("avahi-daemon: chroot helper", uid=110) == ()


def test_found_among_all_processes(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/9/cmdline": "/usr/bin/earlyoom\0-r\0",
            "proc/10/cmdline": "vim\0earlyoom.c\0",
            "proc/11/cmdline": "",
            "proc/12/cmdline": "avahi-daemon: running [spark1.local]\0",
            "proc/version": "x",
        },
    )
    given = {"sections": ["tenants"], "names": list(NAMES), "root": f"{tmp_path}/"}
    found = processes.parse(run_far("others", given))
    assert [(one.pid, one.name) for one in found] == [(9, "earlyoom"), (12, "spark1.local")]


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
    ("rule", "passes"),
    [
        ('iifname "enp1s0f1np1" counter packets 3 bytes 9 accept', True),
        ('iifname "enp1s0f*" accept', True),
        ("ip saddr 192.168.100.12 accept", True),
        ("ip saddr 192.168.0.0/16 tcp dport 1-65535 accept", True),
        ('iifname "enp1s0f1np1" goto filter_IN_trusted', True),
        ("ip saddr 10.0.0.0/8 tcp dport 22 accept", False),
        ("-A INPUT -i enp1s0f1np1 -j ACCEPT", True),
        ("-A INPUT -s 192.168.100.0/24 -j ACCEPT", True),
        ("-A INPUT -i enp+ -j ACCEPT", True),
    ],
)
def test_a_rule_that_speaks_of_the_fabric(rule: str, passes: bool) -> None:
    text = UFW.replace("tcp dport 22 counter packets 9 bytes 540 accept", rule)
    if rule.startswith("-A"):
        text = IPTABLES.replace("-A INPUT -j DROP", f"{rule}\n-A INPUT -j DROP")
    assert parse_rules(text).may_pass("enp1s0f1np1", NETWORK) is passes


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


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TCP = HEAD + (
    "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n"
    "   1: 0B64A8C0:69E0 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0\n"
    "   2: 0B64A8C0:1F40 0C64A8C0:C001 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1 0 20 4 30 9\n"
)
TCP6 = HEAD + (
    "   0: 00000000000000000000000001000000:0016 00000000000000000000000000000000:0000 0A 00000000:00000000"
    " 00:00000000 00000000     0        0 4714 1 0 100 0 0 10 0\n"
)


def put_process(root: Path, pid: int, name: str, inodes: list[int]) -> None:
    put(root, {f"proc/{pid}/comm": f"{name}\n", f"proc/{pid}/fd/.keep": ""})
    for at, inode in enumerate(inodes):
        (root / f"proc/{pid}/fd/{at}").symlink_to(f"socket:[{inode}]")


def listeners(root: Path) -> Any:
    return section(root, "listening", tuple[Listener, ...])


def test_listening_sockets_with_their_holders(tmp_path: Path) -> None:
    put(tmp_path, {"proc/net/tcp": TCP, "proc/net/tcp6": TCP6})
    put_process(tmp_path, 20, "vllm", [4711, 4713])
    put_process(tmp_path, 3, "forked first", [4711])
    assert listeners(tmp_path) == (
        Listener("0.0.0.0", 8000, 3, "forked first", 1000),
        Listener("192.168.100.11", 27104, None, "", 0),
        Listener("::1", 22, None, "", 0),
    )


def test_a_machine_without_ipv6_and_one_without_a_table(tmp_path: Path) -> None:
    put(tmp_path, {"proc/net/tcp": HEAD})
    assert listeners(tmp_path) == ()
    (tmp_path / "proc/net/tcp").unlink()
    assert listeners(tmp_path).kind == "absent"


def test_a_port_of_ours_is_seen_with_our_pid() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = listeners(Path("/"))
        port = server.getsockname()[1]
        (mine,) = [one for one in found if one.port == port]
        assert (mine.address, mine.pid, mine.uid) == ("127.0.0.1", os.getpid(), os.getuid())
