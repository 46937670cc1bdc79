"""What the kernel and the account tell of this host: sections clock, identity, memory, listening, processes.

Given {"sections": [names], "data_dir": path, "hf_home": path, "root": "/"}; only the sections asked for are looked
at, in that order. `root` is where sys/, proc/ and etc/ are. Prints for each a line
{"<section>": {"value": …} | {"missing": why, "kind": kind}}.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time

CONTAINER = re.compile(r"[0-9a-f]{64}")
LISTEN = "0A"


def read_text(path):
    """A file's text without surrounding blanks; raises OSError. Foreign bytes come as surrogates."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read().strip(" \t\n\0")


def read_text_if(path):
    """A file's text, empty when it cannot be read."""
    try:
        return read_text(path)
    except OSError:
        return ""


# clock


def look_clock(given):
    return {"time_unix_s": time.time(), "synchronised": synchronised()}


def synchronised():
    """Whether something keeps the clock right, as timedatectl tells it: adjtimex(2), maximum error below 16 s."""
    try:
        import ctypes

        timex = ctypes.create_string_buffer(512)
        if ctypes.CDLL(None).adjtimex(timex) < 0:
            return None
    except (ImportError, OSError, AttributeError):
        return None
    return ctypes.c_long.from_buffer(timex, 3 * ctypes.sizeof(ctypes.c_long)).value < 16_000_000


# identity


def look_identity(given):
    root, uname = given["root"], os.uname()
    sudo = start_sudo()
    home = os.path.expanduser("~")
    user, groups = account()
    return {
        "product": product(root),
        "machine_id": read_text_if(f"{root}etc/machine-id"),
        "hostname": uname.nodename,
        "kernel": uname.release,
        "arch": uname.machine,
        "user": user,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "groups": groups,
        "path": os.environ.get("PATH", ""),
        "data_dir": absolute(given.get("data_dir", "~"), home),
        "hf_home": absolute(given.get("hf_home", "~"), home),
        "management_address": management_address(),
        "named_addresses": named_addresses(root, uname.nodename),
        "sudo": ended_well(sudo),
    }


def product(root):
    """The firmware's name of this machine: DMI, else the device tree."""
    places = ("sys/class/dmi/id/product_name", "sys/devices/virtual/dmi/id/product_name", "proc/device-tree/model")
    return next(filter(None, (read_text_if(root + place) for place in places)), "")


def account():
    """User name and group names; the numbers where there are no names."""
    import grp
    import pwd

    def name(lookup, number):
        try:
            return lookup(number)[0]
        except (KeyError, OSError):
            return str(number)

    numbers = dict.fromkeys([os.getgid(), *os.getgroups()])
    return name(pwd.getpwuid, os.getuid()), [name(grp.getgrgid, number) for number in numbers]


def named_addresses(root, hostname):
    """The addresses that /etc/hosts gives this host's own name."""
    rows = (line.partition("#")[0].split() for line in read_text_if(f"{root}etc/hosts").splitlines())
    return [row[0] for row in rows if hostname in row[1:]]


def absolute(path, home):
    return os.path.normpath(os.path.join(home, os.path.expanduser(path)))


def management_address():
    """Where SSH reached this host, else the source of its default route (a connected UDP socket sends nothing)."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return words[2].split("%")[0]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                return probe.getsockname()[0]
        except OSError:
            continue
    return ""


def start_sudo():
    """A running `sudo -n true`; True for root, False without sudo."""
    if os.getuid() == 0:
        return True
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.Popen(["sudo", "-n", "true"], **quiet)
    except OSError:
        return False


def ended_well(sudo, timeout_s=3):
    if isinstance(sudo, bool):
        return sudo
    try:
        return sudo.wait(timeout_s) == 0
    except subprocess.TimeoutExpired:
        sudo.kill()
        return False


# memory


def look_memory(given):
    return read_text(f"{given['root']}proc/meminfo")


# listening


def look_listening(given):
    proc = f"{given['root']}proc"
    rows = socket_rows(read_text(f"{proc}/net/tcp")) + socket_rows(read_text_if(f"{proc}/net/tcp6"))
    note_holders({row.pop("inode"): row for row in rows}, proc)
    for row in rows:
        row["process"] = read_text_if(f"{proc}/{row['pid']}/comm") if row["pid"] else ""
    return rows


def socket_rows(table):
    fields = [line.split() for line in table.splitlines()[1:]]
    return [listener(row) for row in fields if len(row) > 9 and row[3] == LISTEN]


def listener(row):
    address, _, port = row[1].partition(":")
    words = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    text = socket.inet_ntop(family, b"".join(words))
    return {"address": text, "port": int(port, 16), "pid": None, "process": "", "uid": int(row[7]), "inode": row[9]}


def note_holders(by_inode, proc):
    """Note in each row the lowest pid that holds its socket, where this user may see it."""
    for pid in pids(proc):
        try:
            descriptors = os.listdir(f"{proc}/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                target = os.readlink(f"{proc}/{pid}/fd/{descriptor}")
            except OSError:
                continue
            row = by_inode.get(target[8:-1]) if target.startswith("socket:[") else None
            if row and row["pid"] is None:
                row["pid"] = pid


# processes


def pids(proc):
    return sorted(int(name) for name in os.listdir(proc) if name.isdigit())


def look_processes(given):
    proc = f"{given['root']}proc"
    return [row for row in (process_row(proc, pid) for pid in pids(proc)) if row]


def process_row(proc, pid):
    name = engine_name(read_text_if(f"{proc}/{pid}/cmdline").split("\0"), proc, pid)
    if not name:
        return None
    pages = read_text_if(f"{proc}/{pid}/statm").split()
    container = CONTAINER.findall(read_text_if(f"{proc}/{pid}/cgroup"))
    return {
        "pid": pid,
        "name": name[:100],
        "rss_bytes": int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0,
        "container": container[-1] if container else "",
    }


def engine_name(argv, proc, pid):
    """How an engine's process is called, empty for any other. A zombie has no words left, only its short name."""
    first = argv[0] or read_text_if(f"{proc}/{pid}/comm")
    base = os.path.basename(first)
    if first.startswith(("VLLM::", "ray::", "ray-dashboard")):
        return first
    if base in ("raylet", "gcs_server"):
        return base
    program, following = script(argv)
    name = os.path.basename(program)
    if (name, following) in (("vllm", "serve"), ("ray", "start")):
        return f"{name} {following}"
    if program.startswith("vllm.entrypoints"):
        return "vllm serve"
    if program.startswith("ray.") or ("/ray/" in program and program.endswith(".py")):
        return "ray agent"
    return ""


def script(argv):
    """The program and its first word; of an interpreter, the script or module it runs."""
    at = 1 if os.path.basename(argv[0]).startswith("python") else 0
    while at < len(argv) and argv[at].startswith("-"):
        at += 1
    return [*argv[at : at + 2], "", ""][:2]


LOOKS = {
    "clock": look_clock,
    "identity": look_identity,
    "memory": look_memory,
    "listening": look_listening,
    "processes": look_processes,
}


def section(look, given):
    try:
        return {"value": look(given)}
    except PermissionError as error:
        return {"missing": f"{error.filename}: permission denied", "kind": "refused"}
    except FileNotFoundError as error:
        return {"missing": f"{error.filename}: not there", "kind": "absent"}
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}", "kind": "unreadable"}


def tell(name, found):
    """Print one section at once: what was told counts even when a later one hangs."""
    line = json.dumps({name: found}, ensure_ascii=False).encode("utf-8", "replace")
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main():
    given = {"root": "/", **json.loads(sys.argv[1])}
    for name in given["sections"]:
        tell(name, section(LOOKS[name], given))


if __name__ == "__main__":
    main()
