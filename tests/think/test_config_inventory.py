"""Which inventory is read, what a name after -n means, how a host is added to the text, and the command's documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_tools import document, refusal, write
from loops import each

from cluster.cli.main import main
from cluster.config.find import find_inventory, inventory_to_change
from cluster.config.inventory import (
    HEADER,
    Inventory,
    InventoryFile,
    inventory_problems,
    load_inventory,
    parse_address,
    read_inventory,
    resolve_hosts,
    with_host,
)
from cluster.config.written import parse_document, validate
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


EMPTY = "hosts: {}\n"

pytestmark = pytest.mark.usefixtures("desk")


def inventory(text: str = TEXT) -> InventoryFile:
    return InventoryFile(validate(Inventory, parse_document(text, "inv.yaml")), Path("inv.yaml"))


def never(name: str) -> bool:
    return False


def error_of(*names: str, file: InventoryFile | None = None) -> UsageError:
    return refusal(resolve_hosts, file or inventory(), names, never)


def test_one_inventory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write("inventory/example.yaml", EMPTY)
    assert find_inventory() is None
    home = write("~/.config/cluster/inventory.yaml", EMPTY)
    assert find_inventory() == home
    here = write("inventory/default.yaml", EMPTY)
    assert find_inventory() == here
    variable = write("elsewhere/v.yaml", EMPTY)
    monkeypatch.setenv("CLUSTER_INVENTORY", str(variable))
    assert find_inventory() == variable
    option = write("o.yaml", EMPTY)
    assert find_inventory("o.yaml") == option
    assert find_inventory("~/.config/cluster/inventory.yaml") == home
    monkeypatch.setenv("CLUSTER_INVENTORY", "")
    assert find_inventory() == here


def test_a_named_inventory_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    write("inventory/default.yaml", EMPTY)
    write("spark.yaml", EMPTY)
    error = refusal(find_inventory, "sparc.yaml")
    assert error.code == "inventory-not-found"
    assert "`spark.yaml`" in error.remedy
    monkeypatch.setenv("CLUSTER_INVENTORY", "/no/such/file.yaml")
    with pytest.raises(UsageError, match=r"\$CLUSTER_INVENTORY"):
        find_inventory()
    assert refusal(find_inventory, "~nobody-of-that-name/x.yaml").code == "user-not-found"


def test_inventories_are_never_merged() -> None:
    assert load_inventory().path is None
    assert load_inventory().inventory == Inventory(hosts={})
    write("~/.config/cluster/inventory.yaml", "hosts: {home: {address: a}}\ndefault_recipe: other\n")
    write("inventory/default.yaml", "hosts: {here: {address: b}}\n")
    file = load_inventory()
    assert (list(file.inventory.hosts), file.inventory.default_recipe) == (["here"], "")


def test_where_add_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path("~/.config/cluster/inventory.yaml").expanduser()
    assert inventory_to_change() == home
    assert inventory_to_change("new.yaml") == Path("new.yaml")
    here = write("inventory/default.yaml", EMPTY)
    assert inventory_to_change() == here
    monkeypatch.setenv("CLUSTER_INVENTORY", "made.yaml")
    assert inventory_to_change() == Path("made.yaml")


def test_paths_in_an_inventory_start_at_its_folder() -> None:
    text = (
        "hosts: {a: {address: x, identity_file: keys/id, known_hosts_file: ~/known}, b: {address: y}}\n"
        "defaults: {identity_file: /abs/id}\ndefault_recipe: ../r.yaml\n"
    )
    inventory = read_inventory(write("inventory/default.yaml", text))
    folder = Path.cwd() / "inventory"
    assert inventory.hosts["a"].identity_file == str(folder / "keys/id")
    assert inventory.hosts["a"].known_hosts_file == str(Path("~/known").expanduser())
    assert inventory.hosts["b"].identity_file == ""
    assert inventory.defaults.identity_file == "/abs/id"
    assert inventory.default_recipe == str(folder / "../r.yaml")


def test_defaults_are_applied() -> None:
    first, second = resolve_hosts(inventory(), ["spark1,spark2"], never)
    assert (first.name, first.address, first.user, first.port) == ("spark1", "10.0.0.1", "ann", 2222)
    assert first.env == {"A": "all", "B": "host"}
    assert (second.user, second.port) == ("nvidia", 0)
    assert (second.hf_home, second.data_dir) == ("/srv/hf", "~/.local/share/cluster")


@each(
    "names, found",
    [
        (["spark2,spark1"], ["spark2", "spark1"]),
        ([" spark1 , spärk "], ["spark1", "spärk"]),
        (["spa\u0308rk"], ["spärk"]),
        (["pair", "spärk"], ["spark1", "spark2", "spärk"]),
        ([], ["spark1", "spark2", "double", "spärk"]),
    ],
)
def test_names_and_groups(names: list[str], found: list[str]) -> None:
    file = inventory() if names else inventory(TEXT.replace("double: {address: 10.0.0.2}", "double: {address: x}"))
    assert [host.name for host in resolve_hosts(file, names, never)] == found


@each(
    "name, user, address, port",
    [
        ("bob@spark9:2200", "bob", "spark9", 2200),
        ("10.0.0.9", "", "10.0.0.9", 0),
        ("fe80::9%eth0", "", "fe80::9%eth0", 0),
        ("[fe80::9]:22", "", "fe80::9", 22),
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


@each(
    "names, code, hint",
    [
        (["zzz"], "host-not-found", "known: spark1, spark2, double, spärk, pair"),
        (["-oProxyCommand=x@y"], "host-not-found", "known: "),
        ([""], "host-not-found", ""),
        (["pair,spark2"], "host-named-twice", "each host"),
        (["spark2,10.0.0.2"], "host-named-twice", "each machine"),
        (["spärk,fe80:0::1"], "host-named-twice", "each machine"),
        (["x:70000"], "address-invalid", ""),
    ],
)
def test_names_that_are_errors(names: list[str], code: str, hint: str) -> None:
    error = error_of(*names)
    assert error.code == code
    assert hint in error.remedy


def test_two_ports_of_one_address_are_two_machines() -> None:
    file = inventory("hosts: {a: {address: 127.0.0.1, port: 2201}, b: {address: 127.0.0.1, port: 2202}}")
    assert len(resolve_hosts(file, ["a,b"], never)) == 2
    file = inventory("hosts: {a: {address: 10.0.0.1, jump: x}, b: {address: 10.0.0.1, jump: y}}")
    assert len(resolve_hosts(file, ["a,b"], never)) == 2


def test_no_hosts_anywhere() -> None:
    for file in (InventoryFile(Inventory(hosts={})), InventoryFile(Inventory(hosts={}), Path("e.yaml"))):
        error = error_of(file=file)
        assert error.code == "no-hosts"
        assert "cluster inventory add" in error.remedy


def test_a_missing_key_file_is_an_error_of_its_host_only() -> None:
    file = inventory("hosts: {a: {address: x, identity_file: /no/such/key}, b: {address: y}}")
    error = error_of("a", file=file)
    assert error.code == "key-file-not-found"
    assert error.what.startswith("inv.yaml: hosts.a.identity_file: ")
    assert resolve_hosts(file, ["b"], never)[0].name == "b"
    assert list(inventory_problems(file)) == [error.what]


@each("word", ["", "@x", "x@", "x:", "[zz]:1", "a/b", "u@-x", "fe80::zz", "x@y@z:1:2", "[::1", "a b"])
def test_what_is_not_an_address(word: str) -> None:
    assert parse_address(word) is None


VALUES: dict[str, str | int] = {"address": "10.0.0.2", "port": 2222}
ROW = "  new: {address: 10.0.0.2, port: 2222}\n"
ODD = "hosts:\n      a: {address: x}   # odd\n"
HOST = "hosts:\n  a:\n    address: x"
LINES = f"{HOST}\n    env:\n      T: |\n        two\n        lines\n"


@each(
    "before, after",
    [
        ("", f"{HEADER}hosts:\n{ROW}"),
        ("# mine\n", f"# mine\nhosts:\n{ROW}"),
        ("groups: {}", f"groups: {{}}\nhosts:\n{ROW}"),
        ("hosts: {}  # none yet\n# end\n", f"hosts:  # none yet\n{ROW}# end\n"),
        (f"{HOST}  # one\n    # about a\n\n# end\n", f"{HOST}  # one\n{ROW}    # about a\n\n# end\n"),
        (HOST, f"{HOST}\n{ROW}"),
        (f"{ODD}\n\ngroups: {{}}\n", f"{ODD}    {ROW}\n\ngroups: {{}}\n"),
        (f"{LINES}defaults: {{}}\n", f"{LINES}{ROW}defaults: {{}}\n"),
        (f"{HOST}\n    fabric:\n    - n1\n    - n2\n", f"{HOST}\n    fabric:\n    - n1\n    - n2\n{ROW}"),
        (f"{HOST}\n".replace("\n", "\r\n"), f"{HOST}\n{ROW}".replace("\n", "\r\n")),
    ],
)
def test_a_host_is_added(before: str, after: str) -> None:
    assert with_host(before, "new", VALUES, "i.yaml") == after


@each("name", ["on", "1.10", "22", "spärk", "~"])
def test_names_that_yaml_might_misread_stay_names(name: str) -> None:
    text = with_host("hosts:\n  a: {address: x}\n", name, VALUES, "i.yaml")
    assert list(parse_document(text, "i.yaml").values["hosts"]) == ["a", name]


@each(
    "before, code",
    [
        ("hosts:\n  new: {address: x}\n", "host-exists"),
        ("hosts: {a: {address: x}}\n", "inventory-not-editable"),
        ("{hosts: {a: {address: x}}}\n", "inventory-not-editable"),
        ("hosts:\n  a: {adress: x}\n", "key-missing"),
        ("hosts: [\n", "yaml-invalid"),
        ("- a\n", "yaml-invalid"),
    ],
)
def test_what_cannot_be_added_to_is_left_alone(before: str, code: str) -> None:
    error = refusal(with_host, before, "new", VALUES, "i.yaml")
    assert error.code == code
    assert (ROW in error.remedy) == (code == "inventory-not-editable")


DOCUMENTED = """
hosts:
  spark1: {address: 192.168.1.41, user: ann}
  spark2: {address: 192.168.1.42}
groups: {pair: [spark1, spark2]}
defaults: {user: nvidia, env: {A: 1}}
default_recipe: mine
"""


def test_inventory_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    write("inventory/default.yaml", DOCUMENTED)
    listed = document(capsys, "inventory", "list")
    assert (listed["path"], listed["hosts"]) == ("inventory/default.yaml", ["spark1", "spark2"])
    assert (listed["groups"], listed["default_recipe"]) == ({"pair": ["spark1", "spark2"]}, "mine")
    hosts = document(capsys, "inventory", "show", "pair")["hosts"]
    shown = [(host["name"], host["user"], host["env"]) for host in hosts]
    assert shown == [("spark1", "ann", {"A": "1"}), ("spark2", "nvidia", {"A": "1"})]
    assert main(["inventory", "show", "spark2"]) == 0
    assert "  hf_home: ~/.cache/huggingface\n" in capsys.readouterr().out


def test_inventory_show_asks_no_ssh_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("inventory").mkdir()
    Path("inventory/default.yaml").write_text("hosts: {spark1: {address: 10.0.0.1}}\n")
    assert main(["inventory", "show", "localhost"]) == 2
    assert "`localhost` is not in inventory/default.yaml [host-not-found]" in capsys.readouterr().err


def test_a_link_to_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Not `did you mean` the same name."""
    Path("gone.yaml").symlink_to("nowhere.yaml")
    for words in (["inventory", "list", "-i", "gone.yaml"], ["recipes", "check", "./gone.yaml"]):
        assert main(words) == 2
        assert "hint: it is a link to nowhere.yaml, which does not exist" in capsys.readouterr().err
