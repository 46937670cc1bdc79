"""What a recipe may say, every key described, and how one is read with the files that it names."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from cluster.config.extend import read_extended
from cluster.config.find import DEFAULT_RECIPE, find_recipe
from cluster.config.inventory import Inventory, absolute
from cluster.config.secrets import API_KEY, secrets_in
from cluster.config.written import (
    LOOKS_SECRET,
    Count,
    Document,
    Environment,
    KeyPath,
    Strict,
    Word,
    dotted,
    form,
    read_text,
    resolve,
    validate,
    wrong_at,
)
from cluster.errors import UsageError

PACKAGES = "site-packages/"
"""How a mount's target begins that lies where the image's Python has its packages, whatever that folder is called."""


_PLAIN = r"(?!(.*/)?\.\.(/|$)).*"
"""The beginning of a path that has no `..` in it."""


def _check_specifier(text: str) -> str:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"expected a PEP 440 version range, e.g. `>=0.19,<0.34`, got `{text}`") from None
    return text


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"expected a regular expression, got `{text}`: {error}") from None
    return text


def _check_extends(text: str) -> str:
    if text:  # a file's own is resolved before it is validated, so this one is from --set
        raise ValueError("allowed in a recipe file only")
    return text


def name_flags(data: Any) -> Any:
    """vLLM flags with names in one form (`max-model-len`), values as YAML 1.2 reads them. Raises ValueError."""
    if not isinstance(data, dict):
        return data
    flags: dict[str, Any] = {}
    for written, value in data.items():
        name = flag_name(str(written))
        if name in flags:
            raise wrong_at(written, "duplicate flag, with - and with _")
        if value is None:
            raise wrong_at(written, "missing value; true gives the bare flag, false its --no- form")
        try:
            flags[name] = resolve(value)
        except ValueError as error:
            raise wrong_at(written, str(error)) from None
    return flags


def flag_name(written: str) -> str:
    """`max_model_len` and `max-model-len` are one flag to vLLM; the second form is kept. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", written):
        raise ValueError(f"expected the name of a flag without dashes in front (max-model-len), got `{written}`")
    head, dot, tail = written.partition(".")
    return head.replace("_", "-") + dot + tail


Name = Annotated[str, form(r"([A-Za-z0-9][\w.-]*)?", "letters, digits, . _ and -, the first a letter or digit")]
Image = Annotated[str, form(r"[A-Za-z0-9][\w.:/@-]*", "an image reference (registry/name:tag or name@sha256:…)")]
ModelId = Annotated[str, form(r"/\S+|[A-Za-z0-9][\w.-]*(/[\w.-]+)?", "a hub id or an absolute path on the hosts")]
ModelFile = Annotated[str, form(rf"(?!/){_PLAIN}[^/]", "the path of a file in the model's own repository")]
Target = Annotated[str, form(rf"(/|{PACKAGES})(?!.*[:,]){_PLAIN}[^/]", f"a file in the container: /… or {PACKAGES}…")]
Row = Annotated[
    str, form(r"((pp|tg)\d+|ctx_(pp|tg))( @ d\d+)?( \(c\d+\))?", "a row name (tg128, pp2048 @ d4096, tg32 (c4))")
]
Parent = Annotated[str, AfterValidator(_check_extends)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
Specifier = Annotated[str, AfterValidator(_check_specifier)]
Flags = Annotated[dict[str, JsonValue], BeforeValidator(name_flags)]
Counts = Annotated[list[Count], Field(min_length=1)]
Depths = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Command = Annotated[list[str], Field(min_length=1)]
Gib = Annotated[float, Field(gt=0)]


class Needs(Strict):
    """Version ranges that the image must hold, as PEP 440 specifiers (`>=0.19`)."""

    vllm: Specifier = Field(default="", description="vLLM inside the image")
    transformers: Specifier = Field(default="", description="transformers inside the image")
    ray: Specifier = Field(default="", description="Ray inside the image, asked only when the backend is ray")


class Mount(Strict):
    """One file given to the container read-only, from this machine or from the model's own repository.

    The content of either is part of the deployment's fingerprint; the second's as the hosts have it, equal on all.
    """

    source: str = Field(
        default="", description="file on this machine; a relative path starts at the recipe's own folder"
    )
    model_file: ModelFile = Field(
        default="", description="instead of source: path in the model's own repository, taken from each host's copy"
    )
    target: Target = Field(
        description="absolute path in the container, or site-packages/… for where the image's Python has its packages"
    )

    @model_validator(mode="after")
    def _check_one(self) -> Mount:
        if bool(self.source) == bool(self.model_file):
            raise ValueError("expected one of source and model_file")
        return self


class ExpectLog(Strict):
    """What the log of a server that is ready must hold, and what it must not; regular expressions, searched by line."""

    require: list[Pattern] = Field(
        default=[], description="each is found in some line of some rank, or it is not ready"
    )
    forbid: list[Pattern] = Field(default=[], description="none is found in any line of any rank, or it is not ready")


class AttentionLayers(Strict):
    """Layers of one shape that keep keys and values of past tokens; what `cluster fit` counts the cache with."""

    layers: Count = Field(description="how many there are of this shape")
    kv_heads: Count = Field(description="key-value heads of each")
    head_dim: Count = Field(description="size of a head")
    window: Count | None = Field(default=None, description="tokens that a sliding layer keeps; left out: all")


class Memory(Strict):
    """What one host must have free, in GiB, by the tensor-parallel size (1, 2, …)."""

    per_host_gib: dict[Count, Gib] = Field(
        default={}, description="MemAvailable in GiB that one host needs before the start, by tensor-parallel size"
    )


class BenchDefaults(Strict):
    """What `cluster bench` measures when the command line does not say."""

    pp: Counts = Field(default=[2048], description="prompt tokens")
    tg: Counts = Field(default=[32, 128], description="generated tokens")
    depth: Depths = Field(default=[0, 4096, 8192, 16384], description="tokens of context before the prompt")
    runs: int = Field(default=3, description="repetitions of each row", ge=1)
    concurrency: Counts = Field(default=[1], description="requests at the same time")


class ReferenceRow(Strict):
    """One published number."""

    test: Row = Field(description="row name as llama-benchy writes it: `tg128 @ d4096`, `pp2048`, `tg32 (c4)`")
    tp: int = Field(default=1, description="tensor-parallel size it was measured at", ge=1)
    t_s: float | None = Field(default=None, description="tokens per second", gt=0)
    t_s_sd: float | None = Field(default=None, description="standard deviation of t_s as published", ge=0)
    ttfr_ms: float | None = Field(default=None, description="time to first response in ms", gt=0)


class Reference(Strict):
    """Published numbers with where they are from and how they were measured."""

    source: str = Field(description="who published it, where")
    depth_mode: Literal["cold", "prefix-caching"] = Field(
        description="cold: one request of depth + pp tokens; prefix-caching: the context loaded first"
    )
    measured_with: str = Field(default="", description="tool, version, runs, vLLM version")
    rows: list[ReferenceRow] = Field(default=[], description="the numbers")
    vram_mb: dict[str, Count] = Field(default={}, description="GPU memory in MB by role (head, worker)")


class Problem(Strict):
    """A known problem and the version it ends in."""

    what: str = Field(description="what happens")
    until: str = Field(default="", description="first version without it; left out when none is known")
    workaround: str = Field(default="", description="what this recipe does about it, or what you can do")


class Recipe(Strict):
    """How one model is served: image, model, vLLM flags, environment, expectations, reference numbers."""

    name: Name = Field(default="", description="what the deployment is called; default: the file's name without .yaml")
    extends: Parent = Field(
        default="",
        description="name or path of a recipe (one that extends none) whose keys count where this one says nothing: "
        "scalars and lists here replace, mappings merge, a key without a value is taken away",
    )
    summary: str = Field(default="", description="one line for `cluster recipes list`")
    model: ModelId = Field(description="hub id (`google/gemma-4-31B-it`) or absolute path on the hosts")
    revision: Word = Field(default="main", description="branch, tag or commit on the hub; a commit cannot drift")
    weights: Literal["real", "dummy"] = Field(
        default="real",
        description="dummy: weights are random, so the text of answers is not judged, and that is said everywhere",
    )
    architecture: Word = Field(
        default="", description="class that the image's vLLM must know, e.g. Gemma4ForConditionalGeneration"
    )
    parameters_b: float | None = Field(
        default=None, description="parameters in billions, for the note on download size", gt=0
    )
    active_parameters_b: float | None = Field(
        default=None,
        description="of a mixture of experts, the parameters in billions that one token reads; bounds its speed",
        gt=0,
    )
    attention: list[AttentionLayers] = Field(
        default=[], description="the model's attention by shape, as its config.json has it, for `cluster fit`"
    )
    weights_gib: float | None = Field(
        default=None, description="size of the weight files in GiB, for the disk check before a download", gt=0
    )
    image: Image = Field(description="image reference that docker can pull; with a digest where it is known")
    platform: Literal["arm64", "amd64", "any"] = Field(default="arm64", description="CPU architecture the image is for")
    needs: Needs = Field(default=Needs(), description="versions the image must hold")
    backend: Literal["ray", "mp"] = Field(
        default="ray", description="how ranks find each other when there is more than one"
    )
    transport: Literal["rdma", "socket"] = Field(
        default="rdma", description="socket: this recipe is meant to run over TCP, RDMA is not demanded"
    )
    port: int = Field(default=8000, description="port of the OpenAI API on the head", ge=1, le=65535)
    served_model_name: Word = Field(default="", description="name in the API; default: the value of `model`")
    vllm: Flags = Field(
        default={},
        description="flags of `vllm serve` by name without dashes in front; true gives the bare flag, false its --no- "
        "form, lists several words, mappings a JSON word; sizes, backend, host, port and names are given by cluster",
    )
    env: Environment = Field(default={}, description="environment of every rank; never a secret")
    dockerfile: str = Field(
        default="",
        description="a Dockerfile on this machine that makes a small image of `image` (`ARG IMAGE`, `FROM $IMAGE`); "
        "each host builds it before the start and keeps it; a relative path starts at the recipe's own folder",
    )
    mounts: list[Mount] = Field(default=[], description="patched files given to the container")
    before_serve: list[Command] = Field(
        default=[], description="commands (lists of words) run in each container before its rank starts"
    )
    shm_gib: float = Field(default=16, description="size of the container's private /dev/shm in GiB", gt=0)
    memory: Memory = Field(default=Memory(), description="memory expectations")
    ready_timeout_s: float = Field(
        default=1800, description="longest wait in seconds from the first container to a proven answer", gt=0
    )
    expect_log: ExpectLog = Field(
        default=ExpectLog(), description="what the ranks' logs must hold once the server answers"
    )
    bench: BenchDefaults = Field(default=BenchDefaults(), description="defaults of `cluster bench`")
    reference: list[Reference] = Field(default=[], description="published numbers to stand beside ours")
    problems: list[Problem] = Field(default=[], description="known problems")

    @model_validator(mode="after")
    def _check_secrets(self) -> Recipe:
        """Flags and commands become words of a command line, which everybody on a host can read (`env` is checked)."""
        for key in ("vllm", "before_serve"):
            for name in secrets_in(getattr(self, key)):
                last = name.rpartition(".")[2].upper().replace("-", "_") or "NAME"
                variable = API_KEY if name == "api-key" else last
                raise wrong_at((key, *filter(None, name.split("."))), f"{LOOKS_SECRET} {variable}")
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
    """Name or path of the recipe meant: the command line, else the inventory's default, else the built-in one.

    Raises UsageError when RECIPE and --recipe differ.
    """
    if positional and option and positional != option:
        raise UsageError(
            f"two recipes are named: {positional} and --recipe {option}", code="recipe-conflict", remedy="leave one out"
        )
    return positional or option or inventory.default_recipe or DEFAULT_RECIPE


def load_recipe(wanted: str) -> RecipeFile:
    """Find a recipe by name or path and read it: its name filled in, mount sources made absolute and found to be files.

    Raises UsageError that names file, line and key.
    """
    path = find_recipe(wanted)
    document, parent = read_extended(path)
    document.values.setdefault("name", path.stem)
    recipe = validate(Recipe, document)
    mounts = [
        mount.model_copy(update={"source": _file_of(document, ("mounts", number, "source"), mount.source)})
        for number, mount in enumerate(recipe.mounts)
    ]
    dockerfile = _file_of(document, ("dockerfile",), recipe.dockerfile)
    return RecipeFile(recipe.model_copy(update={"mounts": mounts, "dockerfile": dockerfile}), path, parent)


def read_recipe(path: Path) -> Recipe:
    """The recipe of a file; see `load_recipe`."""
    return load_recipe(str(path)).recipe


def _file_of(document: Document, key: KeyPath, text: str) -> str:
    """The file that a key names, empty for none; a relative path is meant from the folder of the file it stands in."""
    path = absolute(text, Path(document.place_of(key)[0]).parent) if text else ""
    if path and not Path(path).is_file():
        raise UsageError(f"{document.where(key)}: {dotted(key)}file not found: `{path}`", code="recipe-file-not-found")
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
        raise UsageError(
            f"{path}: the last stage is not built from the recipe's image",
            code="dockerfile-base",
            remedy="begin it with `ARG IMAGE` and `FROM $IMAGE`",
        )
    return text


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror or error} ({key})", code="file-unreadable"
        ) from error


def read_attention(path: Path) -> tuple[AttentionLayers, ...]:
    """Layers by shape from a model's config.json, as Hugging Face writes it; linear ones keep a state of fixed size,
    which is left out.

    Raises UsageError: not a config.json, or a kind of attention that is not counted here.
    """
    full, sliding, linear = "full_attention", "sliding_attention", "linear_attention"
    try:
        config = json.loads(read_text(path))
        text: Mapping[str, Any] = config.get("text_config") or config
        if "kv_lora_rank" in text:
            raise ValueError("latent attention (kv_lora_rank) does not keep heads")
        kinds = Counter(text.get("layer_types") or [full] * text["num_hidden_layers"])
        if unknown := kinds.keys() - {full, sliding, linear}:
            raise ValueError(f"layers of type {', '.join(sorted(unknown))}")
        heads = text.get("num_key_value_heads") or text["num_attention_heads"]
        size = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
        all_heads, all_size = text.get("num_global_key_value_heads") or heads, text.get("global_head_dim") or size
        window = text["sliding_window"] if kinds[sliding] else None
        shapes = ((kinds[sliding], heads, size, window), (kinds[full], all_heads, all_size, None))
        names = ("layers", "kv_heads", "head_dim", "window")
        return tuple(AttentionLayers(**dict(zip(names, shape, strict=True))) for shape in shapes if shape[0])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: expected a config.json with a known kind of attention: {error!r}", code="model-config-unknown"
        ) from None
