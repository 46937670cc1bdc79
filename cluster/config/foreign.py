"""Recipe files of other projects as recipes for cluster: NVIDIA's recipe.yaml with its performance.yaml, sparkrun's,
and spark-vllm-docker's. Nothing in them is run. What a recipe has no place for is listed,
so that nothing is lost silently.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.config import script, written
from cluster.config.imported import NO_KEY, Imported
from cluster.config.performance import read_performance
from cluster.config.recipe import flag_name
from cluster.config.secrets import is_secret, secrets_in
from cluster.config.written import Document
from cluster.errors import UsageError


@dataclass(frozen=True, slots=True)
class Form:
    """A project's form of recipes. `marks`: keys that a file of it has; `keys`: where it has what the reader calls so;
    `backend`: how its ranks find each other unless it says; `silent`: keys that say nothing to a recipe."""

    name: str
    marks: tuple[str, ...]
    keys: Mapping[str, str]
    backend: str = ""
    silent: Sequence[str] = ()


_TEMPLATE = {
    "model": "model",
    "revision": "model_revision",
    "image": "container",
    "engine": "runtime",
    "command": "command",
    "env": "env",
    "defaults": "defaults",
    "shm": "executor_config.shm_size",
}
NVIDIA = Form(
    "NVIDIA recipe",
    ("serve", "runtime", "checkpoint"),
    {
        "summary": "title",
        "model": "checkpoint.target_label",
        "image": "runtime.image",
        "engine": "backend",
        "command": "serve.command",
        "setup": "runtime.setup_command",
        "problems": "limitations",
    },
    "mp",
    (
        *("schema_version", "model", "topology", "checkpoint.target", "checkpoint.draft", "checkpoint.draft_label"),
        *("serve.label", "serve.target", "serve.port", "serve.api_model", "runtime.kind", "runtime.label"),
        *("runtime.image_url", "runtime.setup_label", "runtime.setup_target"),
    ),
)
FORMS = (
    NVIDIA,
    Form(
        "spark-vllm-docker recipe",
        ("name", "container", "command"),
        _TEMPLATE | {"summary": "description"},
        silent=("recipe_version", "name"),
    ),
    Form(
        "sparkrun recipe",
        ("model", "container"),
        _TEMPLATE | {"summary": "metadata.description", "parameters": "metadata.model_params"},
        "mp",
        ("recipe_version", "sparkrun_version", "name"),
    ),
)
"""The first one counts whose marks a file has all."""
ENGINES = {"": "", "vllm": "", "vllm-ray": "ray", "vllm-distributed": "mp", "eugr-vllm": "ray"}
"""What the forms call vLLM, and the backend that is meant."""
PARALLEL = {f"{kind}_parallel": f"{kind}-parallel-size" for kind in ("tensor", "pipeline", "data")}
"""Defaults that are flags under other names."""
SIZES = {"tensor-parallel-size": "tp", "pipeline-parallel-size": "pp"}
KEPT = {"model": "model", "revision": "revision", "served-model-name": "served_model_name", "port": "port"}
KEPT |= {"distributed-executor-backend": "backend"}
"""Flags that a recipe has as keys."""
SCRIPT, SHELL = "shell commands are not run", "depends on a shell or a host"
WHY = dict.fromkeys(("pre_exec", "post_exec", "post_commands", "additional_commands"), SCRIPT)
WHY |= {"mods": "scripts are not run; give patched files by `mounts`, or a `dockerfile`"}
WHY |= {"build_args": "no image is built from them; name an image that a registry has"}
WHY |= dict.fromkeys(("min_nodes", "max_nodes", "cluster_only", "solo_only", "mode"), "sizes are given to `cluster up`")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL | re.ASCII)


def read_foreign(path: Path, managed: Mapping[str, str], settings: frozenset[str]) -> Imported:
    """What a file of one of FORMS says, as a recipe. `managed` are the flags of vLLM that cluster gives, and what
    to use instead; `settings` are the variables that it sets.

    Raises UsageError with file and line: not YAML, an unknown form, an engine that is not vLLM, no `vllm serve`.
    """
    document = written.read_document(path)
    form = next((form for form in FORMS if all(document.values.get(mark) for mark in form.marks)), None)
    if form is None:
        known = ", ".join(f"{form.name} ({', '.join(form.marks)})" for form in FORMS)
        what = f"{document.where(tuple(document.values)[:1])}: not a recipe of a known form; expected one of: {known}"
        raise UsageError(what, code="recipe-form-unknown")
    imported = Imported(path, form.name)
    _Reader(document, form, managed, settings, imported).read()
    performance = path.with_name("performance.yaml")
    if form is NVIDIA and performance.is_file():
        read_performance(written.read_document(performance).values, imported)
    return imported


class _Reader:
    """One file on its way into `imported`."""

    def __init__(
        self, document: Document, form: Form, managed: Mapping[str, str], settings: frozenset[str], imported: Imported
    ) -> None:
        self.document, self.form, self.managed, self.settings = document, form, managed, settings
        self.imported, self.recipe, self.remark = imported, imported.recipe, imported.remark
        self.used = set(form.silent)

    def read(self) -> None:
        engine = self.text("engine")
        if engine not in ENGINES:
            raise self.wrong("engine", f"expected vllm, got {written.show(engine)}")
        for key in ("summary", "model", "revision", "image"):
            self.recipe[key] = " ".join(self.text(key).split())
        self.recipe |= {"backend": ENGINES[engine] or self.form.backend, "vllm": {}, "env": {}}
        if "/" not in self.recipe["image"]:
            self.remark("image", "in no registry: build it on each host, or name another", self.recipe["image"])
        if size := re.fullmatch(r"(\d+(?:\.\d+)?) ?[bB]", self.text("parameters")):
            self.recipe["parameters_b"] = float(size[1])
        self.shared_memory(self.text("shm"))
        for name, value in self.mapping("env").items():
            self.variable("env.", name, value)
        self.setup()
        self.serve()
        limits = self.value("problems") or []
        limits = limits if isinstance(limits, list) else [limits]
        self.recipe["problems"] = [{"what": str(one)} for one in limits]
        for key in [key for key, value in self.recipe.items() if value in ("", {}, [])]:
            del self.recipe[key]
        self.rest(self.document.values)

    def value(self, name: str) -> Any:
        """What the form has where the reader looks for a name, None for nothing; it is no remark then."""
        value: Any = self.document.values if name in self.form.keys else None
        for part in self.form.keys.get(name, "").split("."):
            value = value.get(part) if isinstance(value, dict) else None
        self.used.add(self.form.keys.get(name, ""))
        return value

    def text(self, name: str) -> str:
        value = self.value(name)
        if not isinstance(value, str | None):
            raise self.wrong(name, f"expected text, got {written.show(value)}")
        return str(value or "").strip()

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.value(name) or {}
        if not isinstance(value, dict):
            raise self.wrong(name, f"expected a mapping, got {written.show(value)}")
        return value

    def wrong(self, name: str, why: str) -> UsageError:
        key = self.form.keys[name]
        what = f"{self.document.where(tuple(key.split('.')))}: {key} cannot be imported: {why}"
        return UsageError(what, code="recipe-not-importable")

    def variable(self, prefix: str, name: str, value: Any) -> None:
        key = f"{prefix}{name}"
        if not isinstance(value, str) or not _ASSIGNED.fullmatch(f"{name}="):
            self.remark(key, "not a variable with a value", value or "")
        elif is_secret(name, value):
            self.remark(key, f"looks like a secret; give it with -e {name}")
        elif name in self.settings:
            self.remark(key, "set by cluster", value)
        elif script.OPEN.search(value):
            self.remark(key, SHELL, value)
        else:
            self.recipe["env"][name] = str(value)

    def shared_memory(self, text: str) -> None:
        if size := re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:g|gb|gib)", text, re.IGNORECASE):
            self.recipe["shm_gib"] = float(size[1])

    def setup(self) -> None:
        """`docker run` of a script: its variables and shared memory are read, all else is decided by cluster."""
        text = self.text("setup")
        try:
            commands = script.commands(text)
        except ValueError:
            commands = []
        for words in commands:
            for flag, values in script.flags(words) if words[:2] == ["docker", "run"] else ():
                pair = _ASSIGNED.fullmatch(values[0]) if values and flag in ("e", "env") else None
                if pair:
                    self.variable(f"{self.form.keys['setup']} -e ", *pair.groups())
                elif flag == "shm-size" and values:
                    self.shared_memory(values[0])
        if text:
            self.remark(self.form.keys["setup"], f"{SCRIPT}; -e and --shm-size of `docker run` were read", text)

    def serve(self) -> None:
        """The words of `vllm serve`, and what is set before it; without a command the defaults are its flags."""
        template, defaults = self.text("command"), self.mapping("defaults")
        text, named = script.fill(template, {"model": self.recipe["model"], **defaults})
        for name, value in defaults.items():
            switch = str(value).lower()
            if name in PARALLEL or not (template or switch == "false" or isinstance(value, dict | list)):
                self.flag(PARALLEL.get(name, name), [] if switch == "true" else [str(value)])
            elif name not in named | {"model", "host"}:
                self.remark(f"defaults.{name}", "not used by the command", value)
        if not template and "defaults" in self.form.keys:
            return
        try:
            commands = script.commands(text)
        except ValueError as error:
            raise self.wrong("command", f"not a command: {str(error).lower()}") from None
        words: list[str] | None = None
        for command in commands:
            at = next((at for at in range(len(command)) if command[at : at + 2] == ["vllm", "serve"]), None)
            if command[0] == "export":
                before = command[1:]
            elif at is not None and words is None:
                before, words = command[:at], command[at + 2 :]
            else:
                self.remark(self.form.keys["command"], SCRIPT, shlex.join(command))
                continue
            for word in before:
                if pair := _ASSIGNED.fullmatch(word):
                    self.variable(f"{self.form.keys['command']} ", *pair.groups())
                else:
                    self.remark(self.form.keys["command"], SCRIPT, word)
        if words is None:
            raise self.wrong("command", "no `vllm serve` in it")
        end = next((at for at in range(len(words)) if re.match(r"\d?>", words[at])), len(words))
        if words[end:]:
            self.remark(self.form.keys["command"], SCRIPT, shlex.join(words[end:]))
        for flag, values in script.flags(words[:end]):
            self.flag(flag or "model", values)

    def flag(self, given: str, values: list[str]) -> None:
        """One flag of vLLM, without dashes in front, and the words behind it."""
        try:
            name = flag_name(given)
        except ValueError:
            self.remark(f"--{given}", "not a flag", " ".join(values))
            return
        is_open = any(script.OPEN.search(one) for one in values)
        first, *path = name.split(".")
        value: Any = script.value_of(values, nested=bool(path))
        secret, kept = next(secrets_in({name: value}), ""), KEPT.get(name)
        if name in SIZES and len(values) == 1 and values[0].isdecimal() and int(values[0]):
            self.imported.sizes[SIZES[name]] = int(values[0])
        elif secret and name not in self.managed:
            variable = secret.rpartition(".")[2].upper().replace("-", "_")
            self.remark(f"--{name}", f"looks like a secret; give it with -e {variable}")
        elif kept and values and not (is_open or secret) and (kept != "backend" or values[0] in ("ray", "mp")):
            self.recipe[kept] = value if name == "port" else values[0]
            if values[1:]:
                self.remark(f"--{name}", "one value only", " ".join(values[1:]))
        elif name in self.managed:
            if values or name != "model":
                self.remark(f"--{name}", f"set by cluster; use {self.managed[name]}", " ".join(values))
        elif is_open:
            self.remark(f"--{name}", SHELL, " ".join(values))
        elif first.startswith("no-") and not values:
            self.recipe["vllm"][first.removeprefix("no-")] = False
        else:
            if isinstance(value, str) and re.search(r"\.(jinja|py|json)$", value):
                self.remark(f"--{name}", "kept; the image must have this file, else give it by `mounts`", value)
            for part in reversed(path):
                value = {part: value}
            known = self.recipe["vllm"].get(first)
            both = isinstance(known, dict) and isinstance(value, dict)
            self.recipe["vllm"][first] = {**known, **value} if both else value

    def rest(self, values: Mapping[str, Any], prefix: str = "") -> None:
        """A remark for each key that was not used, with all below it."""
        for key, value in values.items():
            path = f"{prefix}{key}"
            if isinstance(value, dict) and any(one.startswith(f"{path}.") for one in self.used):
                self.rest(value, f"{path}.")
            elif path not in self.used and value not in (None, "", [], {}):
                self.remark(path, WHY.get(key, NO_KEY), value)
