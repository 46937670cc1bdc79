"""What a recipe may say. One model, every key described; unknown keys are errors."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Strict(BaseModel):
    """A frozen model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Needs(Strict):
    """Version ranges that the image must hold, as PEP 440 specifiers (`>=0.19`)."""

    vllm: str = Field("", description="vLLM inside the image")
    transformers: str = Field("", description="transformers inside the image")
    ray: str = Field("", description="Ray inside the image, asked only when the backend is ray")


class Mount(Strict):
    """One file given to the container read-only; its content is part of the deployment's fingerprint."""

    source: str = Field(description="file on this machine, relative to the recipe's own folder")
    target: str = Field(description="absolute path in the container")


class Memory(Strict):
    """What one host must have free, in GiB, by the number of hosts (1, 2, …)."""

    per_host_gib: dict[int, float] = Field(
        default_factory=dict,
        description="MemAvailable one host needs before the start, by tensor-parallel size",
    )


class BenchDefaults(Strict):
    """What `cluster bench` measures when the command line does not say."""

    pp: list[int] = Field(default=[2048], description="prompt tokens")
    tg: list[int] = Field(default=[32, 128], description="generated tokens")
    depth: list[int] = Field(default=[0, 4096, 8192, 16384], description="tokens of context before the prompt")
    runs: int = Field(3, description="repetitions of each row", ge=1)
    concurrency: list[int] = Field(default=[1], description="requests at the same time")


class ReferenceRow(Strict):
    """One published number."""

    test: str = Field(description="row name as llama-benchy writes it: `tg128 @ d4096`, `pp2048`, `tg32 (c4)`")
    tp: int = Field(1, description="tensor-parallel size it was measured at")
    t_s: float | None = Field(None, description="tokens per second")
    t_s_sd: float | None = Field(None, description="its standard deviation as published")
    ttfr_ms: float | None = Field(None, description="time to first response in ms")


class Reference(Strict):
    """Published numbers with where they are from and how they were measured."""

    source: str = Field(description="who published it, where")
    depth_mode: Literal["cold", "prefix-caching"] = Field(
        description="cold: one request of depth + pp tokens; prefix-caching: the context loaded first"
    )
    measured_with: str = Field("", description="tool, version, runs, vLLM version")
    rows: list[ReferenceRow] = Field(default_factory=list, description="the numbers")
    vram_mb: dict[str, int] = Field(default_factory=dict, description="GPU memory by role (head, worker), MB")


class Problem(Strict):
    """A known problem and the version it ends in."""

    what: str = Field(description="what happens")
    until: str = Field("", description="first version without it; empty when none is known")
    workaround: str = Field("", description="what this recipe does about it")


class Recipe(Strict):
    """How one model is served: image, model, vLLM flags, environment, expectations, reference numbers."""

    name: str = Field("", description="defaults to the file's name without .yaml")
    summary: str = Field("", description="one line for `cluster recipes list`")
    model: str = Field(description="hub id (`google/gemma-4-31B-it`) or absolute path on the hosts")
    revision: str = Field("main", description="branch, tag or commit on the hub; a commit cannot drift")
    weights: Literal["real", "dummy"] = Field(
        "real",
        description="dummy: weights are random, so the text of answers is not judged, and that is said everywhere",
    )
    architecture: str = Field("", description="class vLLM must know, e.g. Gemma4ForConditionalGeneration")
    parameters_b: float | None = Field(None, description="parameters in 1e9, for the note on download size")
    weights_gib: float | None = Field(
        None, description="bytes of the weight files in GiB, for disk checks before a download"
    )
    image: str = Field(description="image reference that docker can pull; with a digest where it is known")
    platform: Literal["arm64", "amd64", "any"] = Field("arm64", description="CPU architecture the image is for")
    needs: Needs = Field(default_factory=Needs, description="versions the image must hold")  # type: ignore[arg-type]
    backend: Literal["ray", "mp"] = Field("ray", description="how ranks find each other when there is more than one")
    transport: Literal["rdma", "socket"] = Field(
        "rdma", description="socket: this recipe is meant to run over TCP, RDMA is not demanded"
    )
    port: int = Field(8000, description="port of the OpenAI API on the head", ge=1, le=65535)
    served_model_name: str = Field("", description="name in the API; defaults to `model`")
    vllm: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="flags of `vllm serve` by name without dashes in front; true gives the bare flag, false its --no- form, "
        "lists several words, mappings a JSON word. Sizes, backend, host, port and names are given by cluster",
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment of every rank; never a secret")
    mounts: list[Mount] = Field(default_factory=list, description="patched files given to the container")
    before_serve: list[list[str]] = Field(
        default_factory=list,
        description="commands (lists of words) run in each container before its rank starts",
    )
    shm_gib: float = Field(16, description="size of the container's private /dev/shm in GiB", gt=0)
    memory: Memory = Field(default_factory=Memory, description="memory expectations")
    ready_timeout_s: float = Field(1800, description="longest wait from the first container to a proven answer", gt=0)
    bench: BenchDefaults = Field(default_factory=BenchDefaults, description="defaults of `cluster bench`")  # type: ignore[arg-type]
    reference: list[Reference] = Field(default_factory=list, description="published numbers to stand beside ours")
    problems: list[Problem] = Field(default_factory=list, description="known problems")
