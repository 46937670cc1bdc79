"""Who else this host has, and what it lets in: sections tenants, firewall.

Given {"sections": [names], "names": [name], "root": "/"}: `names` are those of the programs to look for, by the first
two words of a process, up to a colon. Prints for each section a line
{"<section>": {"value": …} | {"missing": why, "kind": kind}}.
"""

import json
import os
import subprocess
import sys

LIST_RULES = "nft list ruleset 2>/dev/null || iptables -S"


class Refused(Exception):
    """This user may not know."""


def read_if(path):
    """A file's text, empty when it cannot be read. Foreign bytes come as surrogates."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def look_tenants(given):
    proc = f"{given['root']}proc"
    pids = sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    return [row for row in (tenant(proc, pid, given["names"]) for pid in pids) if row]


def tenant(proc, pid, names):
    words = read_if(f"{proc}/{pid}/cmdline").rstrip("\0").split("\0")[:3]
    if not {os.path.basename(word).partition(":")[0] for word in words[:2]} & set(names):
        return None
    try:
        uid = os.stat(f"{proc}/{pid}").st_uid
    except OSError:
        return None
    return {"pid": pid, "uid": uid, "words": [word[:200] for word in words]}


def look_firewall(given):
    """All rules, in nft's words or else in those of iptables; raises Refused without the right to see them."""
    words = ["sh", "-c", LIST_RULES]
    argv = words if os.getuid() == 0 else ["sudo", "-n", *words]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        ended = subprocess.run(argv, timeout=5, **quiet)
    except FileNotFoundError:
        raise Refused("sudo: not found, and only root may see the rules") from None
    except subprocess.TimeoutExpired:
        raise Refused("sudo did not answer within 5 s") from None
    if ended.returncode:
        raise Refused(" ".join(ended.stderr.decode("utf-8", "replace").split())[-300:] or f"exit {ended.returncode}")
    return ended.stdout.decode("utf-8", "replace")


LOOKS = {"tenants": look_tenants, "firewall": look_firewall}


def section(look, given):
    try:
        return {"value": look(given)}
    except Refused as error:
        return {"missing": str(error), "kind": "refused"}
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
