"""Other programs on this host, and what its firewall lets in: sections tenants, firewall.

Given {"sections": [names], "names": [name], "root": "/"}: `names` are those of the programs to look for, by the first
two words of a process, up to a colon. Prints for each section a line
{"<section>": {"value": …} | {"missing": why, "kind": kind}}.
"""

import os
import subprocess
from contextlib import suppress

from cluster.far.prelude import Json, NoSection, emit_sections, pids, read_text_if

LIST_RULES = "nft list ruleset 2>/dev/null || iptables -S"


def look_tenants(given: dict[str, Json]) -> Json:
    proc, names, found = f"{given['root']}proc", set(given["names"]), []
    for pid in pids(proc):
        words = read_text_if(f"{proc}/{pid}/cmdline").split("\0")[:3]
        if names & {os.path.basename(word).partition(":")[0] for word in words[:2]}:
            with suppress(OSError):
                uid = os.stat(f"{proc}/{pid}").st_uid
                found.append({"pid": pid, "uid": uid, "words": [word[:200] for word in words]})
    return found


def look_firewall(given: dict[str, Json]) -> str:
    """All rules, in nft's words or else in those of iptables; raises NoSection without the right to see them."""
    words = ["sh", "-c", LIST_RULES]
    argv = words if os.getuid() == 0 else ["sudo", "-n", *words]
    try:
        ended = subprocess.run(argv, timeout=5, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise NoSection("sudo: not found, and only root may see the rules", "refused") from None
    except subprocess.TimeoutExpired:
        raise NoSection("sudo did not answer within 5 s", "refused") from None
    if ended.returncode:
        words = ended.stderr.decode("utf-8", "replace").split()
        raise NoSection(" ".join(words)[-300:] or f"exit {ended.returncode}", "refused")
    return ended.stdout.decode("utf-8", "replace")


if __name__ == "__main__":
    emit_sections({"tenants": look_tenants, "firewall": look_firewall})
