"""What the user wants: recipe, hosts and sizes, checked against each other before any host is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from cluster.argv.vllm import drafter_of, drafting_of, serve_flags, weights_of
from cluster.errors import UsageError

if TYPE_CHECKING:
    from cluster.config.inventory import ResolvedHost
    from cluster.config.recipe import Recipe

Backend = Literal["ray", "mp", "none"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that every host needs a copy of: hub id or absolute path. `dummy`: vLLM makes up the weights itself, so
    that only the other files are needed (config, tokenizer)."""

    id: str
    revision: str
    weights_gib: float | None = None
    dummy: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """One deployment as asked for. `hosts` are in rank order, the head first. `secrets` (environment of the ranks) are
    never shown; `words` go to vLLM as they are. `mounted` is the content of files from this machine by target,
    `dockerfile` the text that a host builds its image from."""

    recipe: Recipe
    hosts: tuple[ResolvedHost, ...]
    tp: int
    pp: int
    backend: Backend
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    words: tuple[str, ...] = ()
    bind: str = "0.0.0.0"
    allow_socket: bool = False
    force: frozenset[str] = frozenset()
    mounted: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    dockerfile: bytes = field(default=b"", repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)

    @property
    def size(self) -> int:
        return len(self.hosts)

    @property
    def served_name(self) -> str:
        return self.recipe.served_model_name or self.recipe.model

    @property
    def flags(self) -> dict[str, Any]:
        """All of vLLM's but those that follow from hosts and sizes."""
        return serve_flags(self.recipe.vllm, self.words)

    @property
    def random_weights(self) -> bool:
        """Whether answers mean nothing."""
        return weights_of(self.recipe.weights, self.flags) == "dummy"

    @property
    def models(self) -> tuple[Model, ...]:
        """The model, and the drafter that vLLM loads beside it, if there is one."""
        recipe, flags = self.recipe, self.flags
        dummy, drafting = flags.get("load-format") == "dummy", drafting_of(flags)
        main = Model(recipe.model, recipe.revision, recipe.weights_gib, dummy)
        if not (drafter := drafter_of(drafting)):
            return (main,)
        loading = drafting.get("draft_load_config")
        dummy = loading.get("load_format") == "dummy" if isinstance(loading, dict) else dummy
        return main, Model(*drafter, None, dummy)

    @property
    def accepts_sockets(self) -> str:
        """What allows traffic between the ranks over sockets; empty when RDMA is required."""
        if self.recipe.transport == "socket":
            return "the recipe says transport: socket"
        return "--allow-socket" if self.allow_socket else ""


def choose_sizes(
    hosts: Sequence[ResolvedHost], *, tp: int | None, pp: int, solo: bool, backend: str | None, recipe: Recipe
) -> tuple[tuple[ResolvedHost, ...], int, Backend]:
    """Fit hosts and sizes: the hosts to use, tp, and the backend (`none` for one rank without Ray). Raises UsageError
    when tp × pp is not the number of hosts (one GPU a Spark)."""
    misfit = partial(UsageError, code="sizes-misfit")
    if solo and (tp not in (None, 1) or pp != 1):
        raise misfit(f"--solo means one host, but --tp {tp or 1} --pp {pp} was given", remedy="leave one out")
    if pp < 1 or (tp is not None and tp < 1):
        raise misfit(f"--tp {tp} --pp {pp}: sizes are 1 or more")
    hosts = hosts[:1] if solo else hosts
    given = len(hosts)
    if tp is None and given % pp:
        raise misfit(f"{given} hosts cannot be divided by --pp {pp}")
    tp = tp or given // pp
    need, names = tp * pp, [host.name for host in hosts]
    sizes = f"--tp {tp}" + (f" --pp {pp}" if pp > 1 else "")
    if need > given:
        what = f"{sizes} needs {need} hosts (one GPU each), {given} named: {', '.join(names)}"
        raise misfit(what, remedy=f"name {need} hosts with -n, or use --tp {given}")
    if need < given:
        remedy = f"-n {','.join(names[:need])}, or --tp {given}"
        raise misfit(f"{sizes} uses {need} of {given} hosts: {', '.join(names)}", remedy=remedy)
    alone, chosen = need == 1 and backend != "ray", backend or recipe.backend
    return tuple(hosts), tp, "none" if alone else "mp" if chosen == "mp" else "ray"
