"""What a name after -n means, and what is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.config.inventory import Inventory, InventoryFile
from cluster.config.load import parse_address, resolve_hosts, same_machines
from cluster.config.validate import validate
from cluster.config.written import parse_document
from cluster.errors import UsageError

TEXT = """
hosts:
  spark1: {address: 10.0.0.1, user: ann, port: 2222, env: {B: host}}
  spark2: {address: 10.0.0.2}
  double: {address: 10.0.0.2}
  spärk: {address: 'FE80::1'}
groups:
  pair: [spark1, spark2]
defaults: {user: nvidia, hf_home: /srv/hf, env: {A: all, B: all}}
"""


def inventory(text: str = TEXT) -> InventoryFile:
    return InventoryFile(validate(Inventory, parse_document(text, "inv.yaml")), Path("inv.yaml"))


def never(name: str) -> bool:
    return False


def error_of(*names: str, file: InventoryFile | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        resolve_hosts(file or inventory(), names, never)
    return f"{caught.value.what} | {caught.value.remedy}"


def test_defaults_are_applied() -> None:
    first, second = resolve_hosts(inventory(), ["spark1,spark2"], never)
    assert (first.name, first.address, first.user, first.port) == ("spark1", "10.0.0.1", "ann", 2222)
    assert first.env == {"A": "all", "B": "host"}
    assert (second.user, second.port, second.hf_home, second.data_dir) == (
        "nvidia",
        0,
        "/srv/hf",
        "~/.local/share/cluster",
    )


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["pair"], ["spark1", "spark2"]),
        (["spark2,spark1"], ["spark2", "spark1"]),
        (["spark2", "spark1"], ["spark2", "spark1"]),
        ([" spark1 , spärk "], ["spark1", "spärk"]),
        (["spa\u0308rk"], ["spärk"]),
        (["pair,spärk"], ["spark1", "spark2", "spärk"]),
    ],
)
def test_names_and_groups(names: list[str], found: list[str]) -> None:
    assert [host.name for host in resolve_hosts(inventory(), names, never)] == found


def test_without_names_every_host_in_order() -> None:
    file = inventory("hosts: {b: {address: x}, a: {address: y}}")
    assert [host.name for host in resolve_hosts(file, [], never)] == ["b", "a"]


@pytest.mark.parametrize(
    ("name", "user", "address", "port"),
    [
        ("bob@spark9", "bob", "spark9", 0),
        ("bob@spark9:2200", "bob", "spark9", 2200),
        ("spark9:2200", "", "spark9", 2200),
        ("10.0.0.9", "", "10.0.0.9", 0),
        ("fe80::9%eth0", "", "fe80::9%eth0", 0),
        ("[fe80::9]:22", "", "fe80::9", 22),
        ("bob@[fe80::9]", "bob", "fe80::9", 0),
        ("bob@fe80::9", "bob", "fe80::9", 0),
    ],
)
def test_ad_hoc_hosts_need_no_inventory(name: str, user: str, address: str, port: int) -> None:
    (host,) = resolve_hosts(InventoryFile(Inventory(hosts={})), [name], never)
    assert (host.name, host.user, host.address, host.port) == (name, user, address, port)


def test_what_ssh_knows_is_ad_hoc_and_asked_last() -> None:
    asked: list[str] = []

    def knows(name: str) -> bool:
        asked.append(name)
        return name == "alias"

    hosts = resolve_hosts(inventory(), ["spark1,bob@x,alias"], knows)
    assert [host.name for host in hosts] == ["spark1", "bob@x", "alias"]
    assert asked == ["alias"]
    assert (hosts[2].user, hosts[2].hf_home) == ("", "/srv/hf")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["sprak1"],
            "`sprak1` is not in inv.yaml and ssh does not know it | nearest: spark1; known: spark1, spark2,"
            " double, spärk, pair",
        ),
        (["zzz"], "`zzz` is not in inv.yaml and ssh does not know it | known: spark1, spark2, double, spärk, pair"),
        (["spark1,,spark2"], "-n spark1,,spark2: a name is empty (a comma too many?) | "),
        ([""], "-n : a name is empty (a comma too many?) | "),
        (["spark1,spark1"], "`spark1` is named twice | name each host once; a group counts as its hosts"),
        (["pair,spark2"], "`spark2` is named twice | name each host once; a group counts as its hosts"),
        (["spark2,double"], "`spark2` and `double` are the same machine: 10.0.0.2 port 22 | name each machine once"),
        (
            ["spark2,10.0.0.2"],
            "`spark2` and `10.0.0.2` are the same machine: 10.0.0.2 port 22 | name each machine once",
        ),
        (
            ["spärk,fe80:0::1"],
            "`spärk` and `fe80:0::1` are the same machine: fe80:0::1 port 22 | name each machine once",
        ),
        (["x:0"], "`x:0`: found port 0, wanted 1 to 65535 | "),
        (["x:70000"], "`x:70000`: found port 70000, wanted 1 to 65535 | "),
        (
            ["-oProxyCommand=x@y"],
            "`-oProxyCommand=x@y` is not in inv.yaml and ssh does not know it | known: spark1,"
            " spark2, double, spärk, pair",
        ),
        (["a b@c"], "`a b@c` is not in inv.yaml and ssh does not know it | known: spark1, spark2, double, spärk, pair"),
    ],
)
def test_what_is_an_error(names: list[str], message: str) -> None:
    assert error_of(*names) == message


def test_two_ports_of_one_address_are_two_machines() -> None:
    file = inventory("hosts: {a: {address: 127.0.0.1, port: 2201}, b: {address: 127.0.0.1, port: 2202}}")
    assert len(resolve_hosts(file, ["a,b"], never)) == 2
    file = inventory("hosts: {a: {address: 10.0.0.1, jump: x}, b: {address: 10.0.0.1, jump: y}}")
    assert len(resolve_hosts(file, ["a,b"], never)) == 2


def test_no_hosts_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert error_of(file=InventoryFile(Inventory(hosts={}))) == (
        "no hosts are named and there is no inventory (looked at -i, $CLUSTER_INVENTORY, ./inventory/default.yaml, "
        f"{tmp_path}/.config/cluster/inventory.yaml) | `cluster inventory add NAME ADDRESS` makes one; or name hosts "
        "that ssh knows: -n HOST,HOST"
    )
    assert error_of(file=InventoryFile(Inventory(hosts={}), Path("e.yaml"))).startswith("e.yaml: lists no hosts | ")


def test_a_key_file_that_is_not_there_is_an_error_of_its_host_only() -> None:
    file = inventory("hosts: {a: {address: x, identity_file: /no/such/key}, b: {address: y}}")
    assert error_of("a", file=file) == (
        "inv.yaml: hosts.a.identity_file: there is no file `/no/such/key` | give the path of a private key on this "
        "machine, or leave it out to let ssh choose"
    )
    assert resolve_hosts(file, ["b"], never)[0].name == "b"


def test_same_machines_of_an_inventory() -> None:
    assert list(same_machines(inventory())) == ["inv.yaml: hosts.double is the same machine as hosts.spark2: 10.0.0.2"]


@pytest.mark.parametrize(
    "word", ["", "@x", "x@", "x:", "[zz]:1", "a/b", "u@-x", "fe80::zz", "x@y@z:1:2", "[::1", "a b"]
)
def test_what_is_no_address(word: str) -> None:
    assert parse_address(word) is None
