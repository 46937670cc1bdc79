"""What a recipe may say, every key described; how one is read with the files it names, and changed by --set and -e."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from cluster.config import written
from cluster.config.find import DEFAULT_RECIPE, find_recipe, nearest
from cluster.config.inventory import Inventory, absolute
from cluster.config.secrets import API_KEY, is_secret, secrets_in
from cluster.config.written import Count, Document, Environment, Strict, Word, form, key, validate, wrong_at
from cluster.errors import UsageError

PACKAGES = "site-packages/"
"""Prefix of a mount's target in the folder of the image's Python packages, whatever its name."""
_PLAIN = r"(?!(.*/)?\.\.(/|$)).*"  # The beginning of a path that has no `..` in it


def _check_specifier(text: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import Version

    try:
        ranges = SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"expected a PEP 440 version range, e.g. `>=0.19,<0.34`, got `{text}`") from None
    bounds = [(one.operator, Version(one.version)) for one in ranges if "*" not in one.version]
    low = max((version for sign, version in bounds if sign in (">=", ">", "==", "~=")), default=None)
    high = min((version for sign, version in bounds if sign in ("<=", "<", "==")), default=None)
    if low and high and (low > high or (low == high and not ranges.contains(low, prereleases=True))):
        raise ValueError(f"no version is in this range: `{text}`")
    return text


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"expected a regular expression, got `{text}`: {error}") from None
    return text


def name_flags(data: Any) -> Any:
    """vLLM flags with names in one form (`max-model-len`), values as YAML 1.2 reads them. Raises ValueError."""
    if not isinstance(data, dict):
        return data
    flags: dict[str, Any] = {}
    for given, value in data.items():
        name = flag_name(str(given))
        if name in flags:
            raise wrong_at(given, "duplicate flag, with - and with _")
        if value is None:
            raise wrong_at(given, "missing value; true gives the bare flag, false its --no- form")
        try:
            flags[name] = written.resolve(value)
        except ValueError as error:
            raise wrong_at(given, str(error)) from None
    return flags


def flag_name(given: str) -> str:
    """`max_model_len` and `max-model-len` are one flag to vLLM; the second form is kept. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", given):
        raise ValueError(f"expected the name of a flag without dashes in front (max-model-len), got `{given}`")
    head, dot, tail = given.partition(".")
    return head.replace("_", "-") + dot + tail


Name = Annotated[str, form(r"([A-Za-z0-9][\w.-]*)?", "letters, digits, . _ and -, the first a letter or digit")]
Image = Annotated[str, form(r"[A-Za-z0-9][\w.:/@-]*", "an image reference (registry/name:tag or name@sha256:…)")]
ModelId = Annotated[str, form(r"/\S+|[A-Za-z0-9][\w.-]*(/[\w.-]+)?", "a hub id or an absolute path on the hosts")]
Revision = Annotated[str, form(r"(?!-)[^\s\x00]+", "a branch, tag or commit: one word without a dash in front")]
ModelFile = Annotated[str, form(rf"(?!/){_PLAIN}[^/]", "the path of a file in the model's own repository")]
Target = Annotated[str, form(rf"(/|{PACKAGES})(?!.*[:,]){_PLAIN}[^/]", f"a file in the container: /… or {PACKAGES}…")]
Row = Annotated[
    str, form(r"((pp|tg)\d+|ctx_(pp|tg))( @ d\d+)?( \(c\d+\))?", "a row name (tg128, pp2048 @ d4096, tg32 (c4))")
]
Parent = Annotated[str, form("", "no value: allowed in a recipe file only")]  # a file's own is resolved before
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Specifier = Annotated[str, AfterValidator(_check_specifier)]
Flags = Annotated[dict[str, JsonValue], BeforeValidator(name_flags)]
Counts = Annotated[list[Count], Field(min_length=1)]
Depths = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Command = Annotated[list[str], Field(min_length=1)]
Gib = Annotated[float, Field(gt=0)]


class Needs(Strict):
    """Version ranges that the image must hold, as PEP 440 specifiers (`>=0.19`)."""

    vllm: Specifier = key("vLLM inside the image", "")
    transformers: Specifier = key("transformers inside the image", "")
    ray: Specifier = key("Ray inside the image, asked only when the backend is ray", "")


class Mount(Strict):
    """One file given to the container read-only, from this machine or from the model's own repository.

    The content of either is part of the deployment's fingerprint; the second's as the hosts have it, equal on all.
    """

    source: str = key("file on this machine; a relative path starts at the recipe's own folder", "")
    model_file: ModelFile = key(
        "instead of source: path in the model's own repository, taken from each host's copy", ""
    )
    target: Target = key(
        "absolute path in the container, or site-packages/… for where the image's Python has its packages"
    )

    @model_validator(mode="after")
    def _check_one(self) -> Mount:
        if bool(self.source) == bool(self.model_file):
            raise ValueError("expected one of source and model_file")
        return self


class ExpectLog(Strict):
    """What the log of a server that is ready must hold, and what it must not; regular expressions, searched by line."""

    require: list[Pattern] = key("each is found in some line of some rank, or it is not ready", [])
    forbid: list[Pattern] = key("none is found in any line of any rank, or it is not ready", [])


class AttentionLayers(Strict):
    """Layers of one shape that keep keys and values of past tokens; what `cluster fit` counts the cache with."""

    layers: Count = key("how many there are of this shape")
    kv_heads: Count = key("key-value heads of each")
    head_dim: Count = key("size of a head")
    window: Count | None = key("tokens that a sliding layer keeps; left out: all", None)


LOW_GIB, LOW_S, AMPLE_GIB = 2.0, 30.0, 8.0
"""With less than LOW_GIB available for LOW_S a Spark begins to stall, as the GPU's memory is the host's: a watch warns.
With more than AMPLE_GIB no process is killed for memory."""


class MemoryGuard(Strict):
    """When the guard in each container ends its rank, before the kernel or a stalled host does; 0 turns one off.

    Page cache counts as available. What changes here holds from the next start on and replaces no deployment: it
    decides nothing about what is served, and a start costs minutes.
    """

    loading_gib: float = key("GiB available on the host below which a rank that loads is ended at once", 3, ge=0)
    serving_gib: float = key(
        "GiB available below which a rank that serves is ended after serving_s, below half of it at once", 1, ge=0
    )
    serving_s: float = key("seconds for which a limit of serving must be crossed", 10, ge=0)
    pressure_percent: float = key(
        "share of time in which all programs wait for memory (full avg10 of /proc/pressure/memory) above which a rank "
        f"that serves is ended after serving_s, with less than {LOW_GIB:g} GiB available",
        40,
        ge=0,
        le=100,
    )


class MemoryNeeds(Strict):
    """What one host must have free, in GiB, by the tensor-parallel size (1, 2, …), and what it must keep."""

    per_host_gib: dict[Count, Gib] = key(
        "GiB that must be available on one host before the start, by tensor-parallel size",
        {},
        json_schema_extra={"propertyNames": {"type": "integer", "minimum": 1}},
    )
    guard: MemoryGuard = key(
        "when a rank is ended before its host runs out of memory", MemoryGuard(), decides="nothing"
    )


class BenchDefaults(Strict):
    """What `cluster bench` measures when the command line does not say."""

    pp: Counts = key("prompt tokens", [2048])
    tg: Counts = key("generated tokens", [32, 128])
    depth: Depths = key("tokens of context before the prompt", [0, 4096, 8192, 16384])
    runs: int = key("repetitions of each row", 3, ge=1)
    concurrency: Counts = key("requests at the same time", [1])


class ReferenceRow(Strict):
    """One published number."""

    test: Row = key("row name as llama-benchy writes it: `tg128 @ d4096`, `pp2048`, `tg32 (c4)`")
    tp: int = key("tensor-parallel size it was measured at", 1, ge=1)
    t_s: float | None = key("tokens per second", None, gt=0)
    t_s_sd: float | None = key("standard deviation of t_s as published", None, ge=0)
    ttfr_ms: float | None = key("time to first response in ms", None, gt=0)


class Reference(Strict):
    """Published numbers with where they are from and how they were measured."""

    source: str = key("who published it, where")
    depth_mode: Literal["cold", "prefix-caching"] = key(
        "cold: one request of depth + pp tokens; prefix-caching: the context loaded first"
    )
    measured_with: str = key("tool, version, runs, vLLM version", "")
    rows: list[ReferenceRow] = key("the numbers", [])
    vram_mb: dict[str, Count] = key("GPU memory in MB by role (head, worker)", {})


class KnownProblem(Strict):
    """A known problem and the version it ends in."""

    what: str = key("what happens")
    until: str = key("first version without it; left out when none is known", "")
    workaround: str = key("what this recipe does about it, or what you can do", "")


class Citation(Strict):
    """A public page that something in the recipe was taken from, and the day it was looked up: pages change."""

    url: str = key("address of the page")
    seen: str = key("day it was looked up, as 2026-11-28")
    what: str = key("what was taken from it", "")

    @model_validator(mode="after")
    def _check_form(self) -> Citation:
        if not re.fullmatch(r"https?://\S+", self.url):
            raise wrong_at("url", f"expected http(s)://…, got `{self.url}`")
        try:
            date.fromisoformat(self.seen)
        except ValueError:
            raise wrong_at("seen", f"expected a day as 2026-11-28, got `{self.seen}`") from None
        return self


class Recipe(Strict):
    """How one model is served: image, model, vLLM flags, environment, expectations, reference numbers.

    `mounts`, `dockerfile`, `unconfined`, `backend` and `transport` stand in a deployment's spec under other names.
    """

    name: Name = key("what the deployment is called; default: the file's name without .yaml", "")
    extends: Parent = key(
        "name or path of a recipe (one that extends none) whose keys count where this one says nothing: "
        "scalars and lists here replace, mappings merge, a key without a value is taken away",
        "",
        decides="series",
    )
    summary: str = key("one line for `cluster recipes list`", "", decides="nothing")
    model: ModelId = key("hub id (`google/gemma-4-31B-it`) or absolute path on the hosts")
    revision: Revision = key("branch, tag or commit on the hub; a commit cannot drift", "main")
    weights: Literal["real", "dummy"] = key(
        "dummy: weights are random, so the text of answers is not judged, and that is said everywhere", "real"
    )
    architecture: Word = key("class that the image's vLLM must know, e.g. Gemma4ForConditionalGeneration", "")
    parameters_b: float | None = key(
        "parameters in billions, for the note on download size", None, decides="series", gt=0
    )
    active_parameters_b: float | None = key(
        "of a mixture of experts, the parameters in billions that one token reads; bounds its speed",
        None,
        decides="series",
        gt=0,
    )
    attention: list[AttentionLayers] = key(
        "the model's attention by shape, as its config.json has it, for `cluster fit`", [], decides="series"
    )
    config: Annotated[dict[str, JsonValue], BeforeValidator(written.resolve)] = key(
        "instead of attention: what the model's config.json says of its layers, for `cluster fit --offline`",
        {},
        decides="nothing",
    )
    weights_gib: float | None = key(
        "size of the weight files in GiB, for the disk check before a download", None, decides="series", gt=0
    )
    image: Image = key("image reference that docker can pull; with a digest where it is known")
    platform: Literal["arm64", "amd64", "any"] = key("CPU architecture the image is for", "arm64")
    needs: Needs = key("versions the image must hold", Needs(), decides="series")
    backend: Literal["ray", "mp"] = key(
        "how ranks find each other when there is more than one", "ray", decides="series"
    )
    transport: Literal["rdma", "socket"] = key(
        "socket: this recipe is meant to run over TCP, RDMA is not demanded", "rdma", decides="series"
    )
    port: int = key("port of the OpenAI API on the head", 8000, ge=1, le=65535)
    served_model_name: Word = key("name in the API; default: the value of `model`", "")
    vllm: Flags = key(
        "flags of `vllm serve` by name without dashes in front; true gives the bare flag, false its --no- "
        "form, lists several words, mappings a JSON word; sizes, backend, host, port and names are given by cluster",
        {},
    )
    fork_flags: list[Word] = key(
        "flags under `vllm` that only the image's fork of vLLM knows, by name or by value; a test holds the others to "
        "vLLM 0.32's own parser",
        [],
        decides="nothing",
    )
    env: Environment = key("environment of every rank; never a secret", {})
    dockerfile: str = key(
        "a Dockerfile on this machine that makes a small image of `image` (`ARG IMAGE`, `FROM $IMAGE`); "
        "each host builds it before the start and keeps it; a relative path starts at the recipe's own folder",
        "",
        decides="series",
    )
    mounts: list[Mount] = key("patched files given to the container", [], decides="series")
    before_serve: list[Command] = key("commands (lists of words) run in each container before its rank starts", [])
    unconfined: bool = key(
        "run without Docker's seccomp and AppArmor profiles, which refuse io_uring; for images that read by it",
        False,
        decides="series",
    )
    shm_gib: float = key("size of the container's private /dev/shm in GiB", 16, gt=0)
    memory: MemoryNeeds = key("memory expectations", MemoryNeeds(), decides="series")
    ready_timeout_s: float = key(
        "longest wait in seconds from the containers' start until the server answers", 1800, decides="series", gt=0
    )
    expect_log: ExpectLog = key("what the ranks' logs must hold once the server answers", ExpectLog(), decides="series")
    bench: BenchDefaults = key("defaults of `cluster bench`", BenchDefaults(), decides="series")
    reference: list[Reference] = key("published numbers to stand beside ours", [], decides="nothing")
    problems: list[KnownProblem] = key("known problems", [], decides="nothing")
    unverified: list[str] = key(
        "what nobody has shown of this recipe, and what is missing; `recipes list` marks it, `up` and `fit` print it",
        [],
        decides="nothing",
    )
    sources: list[Citation] = key("public pages behind numbers, flags and issues", [], decides="nothing")

    @model_validator(mode="after")
    def _check_secrets(self) -> Recipe:
        """Flags and commands become words of a command line, which everybody on a host can read (`env` is checked)."""
        for place in ("vllm", "before_serve"):
            for name in secrets_in(getattr(self, place)):
                last = name.rpartition(".")[2].upper().replace("-", "_") or "NAME"
                variable = API_KEY if name == "api-key" else last
                raise wrong_at((place, *filter(None, name.split("."))), f"{written.LOOKS_SECRET} {variable}")
        return self

    @model_validator(mode="after")
    def _check_active(self) -> Recipe:
        if self.active_parameters_b and self.parameters_b and self.active_parameters_b > self.parameters_b:
            message = f"expected at most parameters_b, which is {self.parameters_b:g}, got {self.active_parameters_b:g}"
            raise wrong_at("active_parameters_b", message)
        return self

    @model_validator(mode="after")
    def _check_mounts(self) -> Recipe:
        for target, count in Counter(mount.target for mount in self.mounts).items():
            if count > 1:
                raise wrong_at("mounts", f"two files have the target `{target}`")
        return self


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe, the file it was read from, and the file of the recipe that it extends."""

    recipe: Recipe
    path: Path
    parent: Path | None = None


def choose_recipe(positional: str | None, option: str | None, inventory: Inventory) -> str:
    """Name or path of the recipe: the command line's, else the inventory's default, else the built-in one.

    Raises UsageError when RECIPE and --recipe differ.
    """
    if positional and option and positional != option:
        what = f"two recipes are named: {positional} and --recipe {option}"
        raise UsageError(what, code="recipe-conflict", remedy="leave one out")
    return positional or option or inventory.default_recipe or DEFAULT_RECIPE


def load_recipe(wanted: str) -> RecipeFile:
    """Find a recipe by name or path and read it, with the one it extends: its name filled in, its files absolute.

    Raises UsageError that names file, line and key.
    """
    path = find_recipe(wanted)
    document = child = written.read_document(path)
    parent = None if child.values.get("extends") is None else _parent(child, path)
    if parent:
        document = written.document_of(written.merge(parent.root, child.root), child.name)
    document.values["name"] = child.values.get("name") or path.stem
    document.values.pop("extends", None)
    recipe = validate(Recipe, document)
    recipe = _with_files(recipe, partial(_file_of, document))
    return RecipeFile(recipe, path, Path(parent.name) if parent else None)


def _with_files(recipe: Recipe, file_of: Callable[[written.KeyPath, str], str]) -> Recipe:
    mounts = [
        mount.model_copy(update={"source": file_of(("mounts", number, "source"), mount.source)})
        for number, mount in enumerate(recipe.mounts)
    ]
    return recipe.model_copy(update={"mounts": mounts, "dockerfile": file_of(("dockerfile",), recipe.dockerfile)})


def _parent(child: Document, path: Path) -> Document:
    """The recipe that a recipe extends. Raises UsageError: not found, or it extends another one itself."""
    wanted, at = child.values["extends"], f"{child.where(('extends',))}: extends"
    if not isinstance(wanted, str):
        raise UsageError(f"{at}: expected the name or path of one recipe", code="extends-invalid")
    try:
        parent_path = find_recipe(wanted, child=path)
    except UsageError as error:
        raise UsageError(f"{at}: {error.what}", code=error.code, remedy=error.remedy) from None
    parent = written.read_document(parent_path)
    if parent.values.get("extends") is not None:
        what = f"{at}: {parent.name} extends another recipe itself; one level is allowed"
        remedy = f"extend `{parent.values['extends']}`, and repeat the keys that {path.name} needs"
        raise UsageError(what, code="extends-invalid", where=parent.where(("extends",)), remedy=remedy)
    return parent


def read_recipe(path: Path) -> Recipe:
    return load_recipe(str(path)).recipe


def _file_of(document: Document, key: written.KeyPath, text: str) -> str:
    """The file that a key names, empty for none; a relative path starts at the folder of the file that has the key."""
    path = absolute(text, Path(document.place_of(key)[0]).parent) if text else ""
    if path and not Path(path).is_file():
        what = f"{document.where(key)}: {written.dotted(key)}file not found: `{path}`"
        raise UsageError(what, code="recipe-file-not-found")
    return path


def read_mounts(mounts: Sequence[Mount]) -> dict[str, bytes]:
    """Content by target path of files mounted from this machine. Raises UsageError when one cannot be read."""
    return {mount.target: _content(mount.source, "mounts") for mount in mounts if mount.source}


def read_dockerfile(path: str) -> bytes:
    """Text of a recipe's Dockerfile; empty without one.

    Raises UsageError when it cannot be read, or does not begin with the recipe's image, which is what was checked.
    """
    text = _content(path, "dockerfile") if path else b""
    bases = re.findall(rb"^\s*FROM\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    if path and (not bases or bases[-1] not in (b"$IMAGE", b"${IMAGE}")):
        what = f"{path}: the last stage is not built from the recipe's image"
        raise UsageError(what, code="dockerfile-base", remedy="begin it with `ARG IMAGE` and `FROM $IMAGE`")
    return text


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        what = f"{path}: cannot be read: {error.strerror or error} ({key})"
        raise UsageError(what, code="file-unreadable") from error


@dataclass(frozen=True, slots=True)
class Variables:
    """Environment given with `-e`: what may be shown, and what may not (left out of `repr`)."""

    plain: dict[str, str] = field(default_factory=dict)
    secret: dict[str, str] = field(default_factory=dict, repr=False)


def split_env(words: Sequence[str]) -> Variables:
    """Read `KEY=VALUE` words; a bare `KEY` takes its value from the environment, so that no shell history has it.

    The name or the form of the value decides what is secret. The last of equal names is used.
    Raises UsageError; no message holds a value.
    """
    values: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        try:
            written.check_env_name(name)
        except ValueError as error:
            remedy = "-e KEY=VALUE, or -e KEY to take it from your environment"
            raise UsageError(f"-e: {error}", code="variable-invalid", remedy=remedy) from None
        if not sign and name not in os.environ:
            remedy = f"-e {name}=VALUE"
            raise UsageError(f"-e {name}: not set in your environment", code="variable-not-set", remedy=remedy)
        values[name] = value if sign else os.environ[name]
        if "\x00" in value:
            raise UsageError(f"-e {name}: the value contains a NUL character", code="variable-invalid")
    secret = {name: value for name, value in values.items() if is_secret(name, value)}
    return Variables({name: value for name, value in values.items() if name not in secret}, secret)


SIGNS = tuple(">|&*!%@`")  # What a YAML value cannot begin with unless it is quoted


def final_recipe(recipe: Recipe, sets: Sequence[str]) -> Recipe:
    """The recipe with each `KEY.SUB=VALUE` applied in order; VALUE is YAML, an empty one or null removes the key.

    A first key that is no recipe key but a flag the recipe gives to vLLM is `vllm.<flag>`. A relative path of a
    file starts at the current directory. Raises UsageError: unknown key (with the nearest), wrong value.
    """
    if not sets:
        return recipe
    values = recipe.model_dump(mode="json", exclude_unset=True)
    for text in sets:
        path, value = _parse(text, recipe)
        target = values
        for part in path[:-1]:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                at, remedy = f"--set {'.'.join(path)}", "set it as one value"
                raise UsageError(f"{at}: `{part}` is not a mapping", code="set-invalid", remedy=remedy)
        if value is None:
            target.pop(path[-1], None)
        else:
            target[path[-1]] = value
    changed = validate(Recipe, Document("--set", values))
    return _with_files(changed, lambda _, text: absolute(text, Path()) if text else "")


def _parse(text: str, recipe: Recipe) -> tuple[list[str], Any]:
    name, sign, given = text.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not sign or not all(path):
        remedy = "e.g. --set vllm.max-model-len=32768"
        raise UsageError(f"--set {name}: expected KEY=VALUE", code="set-invalid", remedy=remedy)
    if path[0] not in Recipe.model_fields and path[0].replace("_", "-") in recipe.vllm:
        path = ["vllm", *path]
    if path[0] not in Recipe.model_fields:
        word, known = path[0], [one.path for one in written.keys(Recipe) if written.ITEM not in one.path]
        by_end = {one.rpartition(".")[2]: one for one in reversed([*known, *(f"vllm.{flag}" for flag in recipe.vllm)])}
        near = by_end.get(nearest(word.replace("_", "-"), by_end) or nearest(word, by_end), "")
        remedy = f"did you mean `{near}`?" if near else "a flag of vLLM is set as vllm.FLAG=VALUE"
        raise UsageError(f"--set {name}: unknown recipe key", code="unknown-key", remedy=remedy)
    if path[0] == "vllm" and len(path) > 1:
        try:
            path[1] = flag_name(path[1])
        except ValueError as error:
            raise UsageError(f"--set {name}: {error}", code="set-invalid") from None
    try:
        return path, written.parse_value(given, f"--set {name}")
    except UsageError as error:
        if given[:1] in SIGNS:
            error.remedy = f"quote such a value twice: --set '{name}=\"{given}\"'"
        raise
