"""A systemd unit that watches with the options given: `cluster status --watch --print-unit`."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path

from cluster.deploy.session import Named
from cluster.errors import ExitCode
from cluster.screen import Screen

UNIT = """\
# cluster status --watch --print-unit | sudo tee /etc/systemd/system/cluster-watch.service
# sudo systemctl daemon-reload && sudo systemctl enable --now cluster-watch
[Unit]
Description=cluster status --watch ({hosts})
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
User={user}
ExecStart={command}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2
TimeoutStopSec=120

[Install]
WantedBy=multi-user.target
"""


def print_unit(args: argparse.Namespace, named: Named, screen: Screen) -> ExitCode:
    """Print the unit, and nothing else."""
    words = [*program(), *watch_words(args, named)]
    hosts = ", ".join(host.name for host in named.hosts).replace("%", "%%")
    text = UNIT.format(hosts=hosts, user=getpass.getuser(), command=" ".join(map(quote, words)))
    for line in text.splitlines():
        screen.line(line)
    screen.document({"unit": text})
    return ExitCode.DONE


def program() -> list[str]:
    """How this program was started, with an absolute path."""
    own = Path(sys.argv[0])
    if own.name == "cluster" and os.access(own, os.X_OK):
        return [str(own.absolute())]
    return [sys.executable, "-m", "cluster.cli.main"]


def watch_words(args: argparse.Namespace, named: Named) -> list[str]:
    """The same command line, with the inventory's file and only what differs from the defaults."""
    words = ["status", "--watch", "--interval", f"{args.interval:g}"]
    words += ["--inventory", str(named.file.path.absolute())] if named.file.path else []
    words += ["--nodes", args.nodes] if args.nodes else []
    words += ["--on-wedge", args.on_wedge]
    words += ["--command", args.on_finding] if args.on_wedge == "command" else []
    words += ["--max-restarts", str(args.max_restarts)] if args.on_wedge == "restart" else []
    return words + (["--json"] if args.json else [])


def quote(word: str) -> str:
    """A word of ExecStart=: systemd's specifiers and variables taken literally, in quotes where needed."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if text and not set(text) & set(" \t'\";\\") else f'"{text}"'
