import os
import socket
from pathlib import Path

from facts_tools import put, run_far, said

from cluster.spark import ports
from cluster.spark.fact import Missing
from cluster.spark.ports import Listener

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


def look(root: Path) -> tuple[Listener, ...]:
    found = ports.parse(run_far("look", {"sections": ["listening"], "root": f"{root}/"}))
    assert not isinstance(found, Missing), found
    return found


def test_listening_sockets_with_their_holders(tmp_path: Path) -> None:
    put(tmp_path, {"proc/net/tcp": TCP, "proc/net/tcp6": TCP6})
    put_process(tmp_path, 20, "vllm", [4711, 4713])
    put_process(tmp_path, 3, "forked first", [4711])
    assert look(tmp_path) == (
        Listener("0.0.0.0", 8000, 3, "forked first", 1000),
        Listener("192.168.100.11", 27104, None, "", 0),
        Listener("::1", 22, None, "", 0),
    )


def test_a_machine_without_ipv6(tmp_path: Path) -> None:
    put(tmp_path, {"proc/net/tcp": HEAD})
    assert look(tmp_path) == ()


def test_no_table_is_missing(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    found = ports.parse(run_far("look", {"sections": ["listening"], "root": f"{tmp_path}/"}))
    assert found.kind == "absent"


def test_a_port_of_ours_is_seen_with_our_pid() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = look(Path("/"))
        port = server.getsockname()[1]
        (mine,) = [one for one in found if one.port == port]
        assert (mine.address, mine.pid, mine.uid) == ("127.0.0.1", os.getpid(), os.getuid())


def test_recorded_reply() -> None:
    row = {"address": "::", "port": 8000, "pid": None, "process": "", "uid": 0}
    assert ports.parse(said({"listening": {"value": [row]}})) == (Listener("::", 8000, None, "", 0),)
