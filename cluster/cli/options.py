"""Every option of every command, each once: what is typed, and its help. Light to import; nothing is done here."""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from cluster.config.secrets import is_secret, redact

TO_VLLM = ("up", "swap", "scaling", "sweep")
"""Commands that give vLLM what stands after the first `--`."""
DESCRIBED = {
    "swap": "Stop what runs, see that its memory is back, start RECIPE there and prove it; what ran before serves "
    "again when RECIPE does not become ready.",
    "pull": "Bring a recipe's image and weights onto every host, and see that they are whole and the same.",
    "doctor": "Every check of every host: what is wrong, and what to do. It changes nothing; a deployment of several "
    "ranks that serves is asked one completion of 8 tokens, to see by the HCAs' counters which way its traffic goes.",
}
"""Descriptions that say more than the line in the list of commands."""
OUTPUT = {
    "--json": "one JSON document on stdout; progress on stderr",
    "--debug": "show the traceback of an error",
}
COMMON = {
    "-i --inventory FILE": "inventory file (default: $CLUSTER_INVENTORY, else ./inventory/default.yaml, else "
    "~/.config/cluster/inventory.yaml)",
    **OUTPUT,
}
HOSTS = "hosts, groups or user@host:port"
RUNNING = "(default: the hosts of what runs, looked for on all hosts of the inventory)"
NODES = {"-n --nodes HOST[,HOST…]": f"{HOSTS} (default: all hosts of the inventory)"}
RANKED = {"-n --nodes HOST[,HOST…]": f"{HOSTS}; the first is the head (default: all hosts of the inventory)"}
SERVING = {"-n --nodes HOST[,HOST…]": f"{HOSTS} {RUNNING}"}
SET = {"--set KEY.SUB=VALUE*": "change a recipe key; VALUE is YAML"}
CHOSEN = {
    "RECIPE?": "recipe name or file (default: see `cluster recipes list`)",
    "-r --recipe RECIPE": "the same as RECIPE",
    **SET,
}
ENV = {
    "-e --env KEY=VALUE*": "environment of every rank; without =VALUE it is taken from yours; secrets (by name: KEY, "
    "TOKEN, PASSWD …) travel as files and are shown nowhere",
}
SIZES = {
    "--tp -tp N": "tensor-parallel size (default: hosts ÷ pp)",
    "--pipeline-parallel N": "pipeline size (default: 1)",
    "--solo": "first host only, --tp 1",
    "--backend {ray,mp}": "how ranks find each other (default: the recipe's; one host alone uses neither unless ray is "
    "given)",
}
DRY_RUN = {"--dry-run": "print every host's argv in order and change nothing"}
HUB_TOKEN = {
    "--hub-token-file FILE": "hub token for downloads (default: $HF_TOKEN, else the file that `hf auth login` writes)",
}
STARTING = {
    **DRY_RUN,
    "-y --yes": "do not ask before downloads and replacements; without a terminal, downloads need it",
    "--allow-socket": "accept TCP where RDMA is available",
    "--force CHECK*": "ignore this failed check; its name stands in the error",
    "--bind ADDRESS": "address the API listens on (default: all)",
    "--api-key-file FILE": "the API demands the key in this file",
    **HUB_TOKEN,
}
FABRIC_TEST = {
    "--fabric-test": "measure each link between neighbouring hosts both ways, some seconds each: RDMA with ib_write_bw "
    "where both have it, else TCP",
}
CLIENTS = {
    "--clients": "also print the lines that point Claude Code, OpenAI's SDKs and Open WebUI at the endpoint; a key is "
    "named by its variable only",
}
UP = {
    **{words.replace("--pipeline", "--pp -pp --pipeline"): text for words, text in SIZES.items()},
    **STARTING,
    **FABRIC_TEST,
    **CLIENTS,
    "--no-probe": "leave out the few questions that are asked finally, once something was started",
    **COMMON,
}
RESULTS = {
    "--results DIR": "where results are kept (default: ./results if it exists, else ~/.local/state/cluster/results)",
}
MEASURING = {
    "--depth N+": "tokens before the prompt (default: the recipe's)",
    "--pp -pp N+": "prompt tokens (default: the recipe's)",
    "--tg -tg N+": "generated tokens (default: the recipe's)",
    "--runs N|auto": "repetitions of each row; auto: until the rates are known within ±2 %%, 3 to 10 (default: the "
    "recipe's)",
    "--concurrency N+": "requests at the same time (default: the recipe's)",
    "--seed N": "seed of the prompts (default: 1)",
    "--corpus {prose,code}": "what the prompts are made of; speculative decoding depends on it (default: prose)",
    "--prefix-caching": "load the context first (rows ctx_pp, ctx_tg), then time the prompt on top of it; cache hits "
    "are verified (default: context and prompt in one cold request)",
    "--chat": "/v1/chat/completions (default: /v1/completions)",
    "--natural-stop": "outputs end where the model ends them, after --tg tokens at most",
    **RESULTS,
}
SERVER = {
    "--model NAME": "served model name (default: what the server says)",
    "--api-key-file FILE": "key of the API at --base-url",
    **COMMON,
}
SERIES = {
    "--resume": "keep what an earlier run of the same command measured; go on with the rest",
    **STARTING,
    **MEASURING,
    **COMMON,
}

IMPORT = {
    "PATH+": "file or folder: NVIDIA's recipe.yaml with its performance.yaml, recipes of sparkrun and of "
    "spark-vllm-docker",
    "-o --output DIR": "folder for the recipes (default: recipes)",
    "--force": "overwrite recipes there of the same name",
    **OUTPUT,
}


def suite_abouts() -> dict[str, str]:
    """What each suite of bench answers, by its name. Read without YAML, since every help lists them."""
    text = (Path(__file__).parents[1] / "bench" / "suites.yaml").read_text("utf-8")
    return {name: about.strip('"') for name, about in re.findall(r"^([a-z-]+):\n  about: (.+)$", text, re.MULTILINE)}


SUITES = suite_abouts()
OPTIONS: dict[str, dict[str, str]] = {
    "up": CHOSEN | ENV | RANKED | UP,
    "swap": CHOSEN
    | {"RECIPE?": "recipe name or file"}
    | ENV
    | {"-n --nodes HOST[,HOST…]": f"{HOSTS}; the first is the head {RUNNING}"}
    | UP,
    "pull": {
        **CHOSEN,
        **NODES,
        "--dry-run": "say what is missing where, and fetch nothing",
        "-y --yes": "do not ask; without a terminal, downloads need it",
        **HUB_TOKEN,
        **COMMON,
    },
    "down": NODES | DRY_RUN | COMMON,
    "status": {
        **NODES,
        **CLIENTS,
        "--watch": "go on looking and say each change once: a hang, a lost rank, falling memory, low clocks, a link, "
        "sockets, a silent host; with --json one object a line",
        "--interval S": "seconds from look to look (default: 10)",
        "--on-wedge {report,command,restart}": "what to do besides: nothing, run --command at each new finding, or "
        "restart all ranks when they hang or one died, not for memory (default: report)",
        "--command CMD": "program and words to run on this machine; the finding comes as JSON on stdin, "
        "$CLUSTER_FINDING and $CLUSTER_DEPLOYMENT name it; it has 60 s",
        "--max-restarts N": "restarts in the life of this watch, with pauses of 1, 5 and 15 minutes after them "
        "(default: 3)",
        "--print-unit": "print a systemd unit for this machine that watches with these options",
        **COMMON,
    },
    "doctor": {
        **CHOSEN,
        **RANKED,
        **FABRIC_TEST,
        "--bundle FILE": "also write FILE (.tar.gz) for a bug report: facts, findings, logs of our ranks, versions, "
        "inventory and recipe, without secrets",
        "-y --yes": "overwrite FILE",
        **COMMON,
    },
    "probe": {
        "-r --recipe RECIPE": "recipe that says what the server promises: tools, reasoning, pictures, its context "
        "(default: the one that runs; with --base-url none)",
        **SERVING,
        "--quick": "only what `cluster up` asks finally",
        "--full": "also seven problems with exact answers, scored: minutes",
        "--only NAME+": "only these cases or groups of cases",
        "--base-url URL*": "ask this server, from this machine",
        **SERVER,
    },
    "bench": {
        "-r --recipe RECIPE": "recipe whose bench defaults and reference numbers count (default: the one that runs)",
        **SERVING,
        **MEASURING,
        "--suite NAME": f"named shapes. {'; '.join(f'{name}: {about}' for name, about in SUITES.items())}",
        "--replicas": "all deployments that run there share the requests, one after the other; they have to be of one "
        "recipe (default: only where -n names the hosts of several)",
        "--base-url URL*": "measure this server, from this machine; given more than once: servers of the same model, "
        "which share the requests",
        **SERVER,
    },
    "scaling": {
        **CHOSEN,
        **ENV,
        **RANKED,
        "--tp -tp N+": "tensor-parallel sizes to measure, in this order; each uses the first hosts (default: 1 and the "
        "number of hosts)",
        "--pipeline-parallel N": SIZES["--pipeline-parallel N"],
        "--backend {ray,mp}": "how ranks find each other, at every size, so that they are compared like with like "
        "(default: the recipe's; ray starts Ray at --tp 1 too, mp needs nothing there)",
        "--replicas": "finally also a deployment of --tp 1 on each host, which share the requests, beside the size on "
        "the same hosts",
        **SERIES,
    },
    "sweep": {
        **CHOSEN,
        **ENV,
        "--vary KEY=A,B,C*": "a recipe key as --set takes it, and its values (YAML, null takes the key away); also tp, "
        "pp and backend; given more than once: every combination",
        **RANKED,
        **SIZES,
        **SERIES,
    },
    "report": {
        "FILE*": "results of bench, or series of scaling and sweep (default: the newest, with what it can be compared "
        "to)",
        "-o --output FILE*": "write FILE; its ending says what: .html (one page, needs no network), .md, .csv or .json "
        "(default: Markdown on stdout, and a page beside the results)",
        **RESULTS,
        **COMMON,
    },
    "logs": {
        **NODES,
        "--tail N": "the last lines of each rank (default: 200; all with --explain)",
        "-f --follow": "go on as lines come",
        "--explain": "what is wrong instead of the lines: the cause, the line that shows it, what to do; reads Ray's "
        "logs and the hosts' journals as well. Exit code 4 when something has failed",
        **COMMON,
    },
    "explain": {
        "FILE+": "file or directory of saved logs and outputs, - for standard input; several are read together, since "
        "one settles what another leaves open",
        **OUTPUT,
    },
    "exec": NODES | {"--timeout S": "seconds a host may take (default: 60)"} | COMMON,
    "fit": {
        **CHOSEN,
        "--tp -tp N+": "tensor-parallel sizes (default: 1 2)",
        "--length TOKENS": "tokens of a sequence, as 65536, 128k or 128K (default: max-model-len)",
        "--sequences N": "sequences at once (default: 1)",
        "--pp N": "pipeline-parallel size (default: 1)",
        "--leave S": "GiB that stay free on each host, instead of what gpu-memory-utilization says",
        "--acceptance S": "share of drafted tokens that are accepted, 0 to 1, for the ceiling",
        "--vllm N.N": "release of vLLM, as 0.32 (default: what the image's tag names, else the newest known)",
        "--model-dir DIR": "directory with config.json and safetensors (default: this machine's copy, else the hub)",
        "--offline": "read no headers: count with the recipe's own numbers (not with --model-dir)",
        "--gpu NAME": "GPU as nvidia-smi calls it: GB10, 'H100 80GB HBM3' or H200 (default: a Spark's GB10)",
        "--memory-gib S": "memory for the model on a host: MemTotal of a Spark (default: as --gpu has it)",
        **COMMON,
    },
}
"""By command: what is typed → help. `N` is an int, `S` and `GIB` floats, `{a,b}` a choice, all else text; without a
value it is a switch. `?` as in argparse, `+` several values, `*` given more than once. Numbers and choices have the
default that the help names.
"""


def runs(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or auto, found {text!r}") from None


def whole(text: str) -> int:
    """Raises ArgumentTypeError, as argparse has it."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, as 2, found {text!r}") from None


def decimal(text: str) -> float:
    """A finite number. Raises ArgumentTypeError."""
    with suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"expected a number without a unit, as 0.5 or 20, found {text!r}")


TYPES: dict[str, Callable[[str], Any]] = {"N": whole, "S": decimal, "GIB": decimal, "N|auto": runs}
MORE: dict[str, dict[str, Any]] = {
    "--recipe": {"dest": "recipe_option"},
    "--pipeline-parallel": {"dest": "pipeline"},
    "--command": {"dest": "on_finding"},
    "--no-probe": {"dest": "probe"},
    "--bind": {"default": "0.0.0.0"},
    "--only": {"action": "extend", "default": []},
    "--suite": {"choices": tuple(SUITES)},
    "--vary": {"required": True},
}
"""What the words of an option do not say, as keywords of `add_argument`."""
EXCLUSIVE = {"--quick", "--full", "--only", "--follow", "--explain"}
"""Options of one command that exclude each other."""


def read_option(words: str, text: str) -> tuple[list[str], dict[str, Any]]:
    """An entry of OPTIONS as the names and keywords of `add_argument`."""
    *names, last = words.split()
    if last.startswith("-"):
        names.append(last)
        off = last.startswith("--no-")
        how: dict[str, Any] = {"action": "store_false" if off else "store_true", "default": off}
    else:
        value, many = last.rstrip("?+*"), last[-1]
        choices = value[1:-1].split(",") if value[0] == "{" else None
        kind: Callable[[str], Any] | None = str if choices else TYPES.get(value)
        default = re.search(r"\(default: (\w[\w.]*)[,)]", text) if kind else None
        if default:
            kind = decimal if "." in default[1] else kind
        how = {"choices": choices} if choices else {"metavar": value, "type": kind}
        how["default"] = kind(default[1]) if kind and default else None
        if not names:
            names, how["nargs"] = [value.lower() + "s" * (many in "+*")], many
        elif many == "*":
            how |= {"action": "append", "default": []}
        elif many == "+":
            how["nargs"] = "+"
    if names[-1].startswith("-"):
        how["dest"] = names[-1].lstrip("-").replace("-", "_")
    return names, how | {"help": text} | MORE.get(names[-1], {})


class Parser(argparse.ArgumentParser):
    """A parser that refuses empty words, as a variable gives that is not set; so do the parsers of its commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("type", None, _filled)
        self._sorting = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """In the words of one command options may stand anywhere; what is unknown is reported with its own usage."""
        if self._subparsers or self._sorting:
            return super().parse_known_args(args, namespace)
        self._sorting = True  # argparse calls this method for each of the two kinds
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._sorting = False
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def add_subparsers(self, **options: Any) -> Any:
        """Commands, each with all its words: their own parsers say which of them is empty."""
        commands = super().add_subparsers(**options)
        commands.type = str
        return commands

    def add_options(self, options: dict[str, str]) -> None:
        group = None
        for words, text in options.items():
            names, how = read_option(words, text)
            if names[-1] in EXCLUSIVE:
                group = group or self.add_mutually_exclusive_group()
                group.add_argument(*names, **how)
            else:
                self.add_argument(*names, **how)


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty")
    return text


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What stands on the command line of `up` and `swap`; each field is named as its option's `dest`."""

    recipe: str | None = None
    recipe_option: str | None = None
    set: Sequence[str] = ()
    env: Sequence[str] = ()
    inventory: str | None = None
    nodes: str | None = None
    tp: int | None = None
    pipeline: int = 1
    solo: bool = False
    backend: str | None = None
    dry_run: bool = False
    yes: bool = False
    allow_socket: bool = False
    force: Sequence[str] = ()
    bind: str = "0.0.0.0"
    api_key_file: str | None = None
    hub_token_file: str | None = None
    fabric_test: bool = False
    clients: bool = False
    probe: bool = True
    words: Sequence[str] = ()

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """What was typed; options of other commands are left out, those not known there have their defaults."""
        given = vars(args)
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})


def typed(command: str, args: object) -> str:
    """The command line that is read as these options, attributes named as `dest`; values of secrets are left out."""
    line = ["cluster", command]
    for words, text in OPTIONS[command].items():
        names, how = read_option(words, text)
        dest, default = how.get("dest", names[0]), how["default"]
        value = getattr(args, dest, default)
        if value == default or dest == "json":
            continue
        values = [] if isinstance(value, bool) else value if isinstance(value, list | tuple) else [value]
        if dest == "env":  # `-e TOKEN=value` as `-e TOKEN`, which takes the value from the environment
            pairs = [word.partition("=") for word in values]
            values = [name if is_secret(name, value) else f"{name}{sign}{value}" for name, sign, value in pairs]
        option = [max(names, key=len)] if "dest" in how else []
        if how.get("action") == "append":
            line += [word for one in values for word in (*option, str(one))]
        else:
            line += [*option, *map(str, values)]
    after = getattr(args, "words", None) or []
    return shlex.join(redact([*line, "--", *after] if after else line, ()))
