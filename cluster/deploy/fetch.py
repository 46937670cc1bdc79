"""Fetch what is missing: the image with `docker pull`, the weights with the hub's own tool, on each host."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cluster.argv.docker import DOWNLOAD, Download, docker_inspect, docker_pull, hub_download, why_failed
from cluster.argv.question import Question
from cluster.config.secrets import read_secret
from cluster.deploy.plan import HUB_TOKEN
from cluster.deploy.rank import identity_of
from cluster.deploy.session import Session
from cluster.errors import UNCHANGED, ClusterError, InterruptedByUser, RefusedError, raise_all
from cluster.hosts.protocol import Host
from cluster.screen import Screen
from cluster.spark import weights
from cluster.spark.fact import Missing, known
from cluster.spark.look import Seen
from cluster.spark.memory import GIB
from cluster.spark.request import Model, Wanted

POLL_S = 3.0


def read_token(path: str | None) -> str:
    """The hub token: `--hub-token-file`, else $HF_TOKEN, else the hub's own file; empty when there is none."""
    if path:
        return read_secret(path, "--hub-token-file")
    if os.environ.get("HF_TOKEN"):
        return os.environ["HF_TOKEN"].strip()
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    try:
        return (home / "token").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True, slots=True)
class How:
    """How to fetch: without asking, with which hub token. `fetched`: what was fetched so far, and where."""

    yes: bool
    token: str = field(repr=False)
    fetched: list[str] = field(default_factory=list)

    def refuse_unasked(self, missing: str, session: Session) -> None:
        """Raise RefusedError when nothing may be fetched: on a dry run, or when nobody can be asked."""
        if session.dry_run:
            what = f"{missing}; a dry run fetches nothing"
            raise RefusedError(what, code="fetch-needed", remedy="cluster up fetches it after asking")
        if not self.yes and not session.screen.interactive:
            raise RefusedError(missing, code="fetch-needed", remedy="--yes fetches it without asking")

    def agree(self, question: str, screen: Screen) -> None:
        if self.yes:
            screen.note(question)
        elif not screen.confirm(f"{question}?"):
            raise RefusedError(f"{question}: not agreed", code="not-agreed")


@contextmanager
def naming_what_stays(how: How) -> Iterator[None]:
    """Errors that say that nothing was rolled back, or changed, name what was fetched, and stays."""
    try:
        yield
    except ClusterError as error:
        for one in error.errors:
            if how.fetched and one.rolled_back.startswith(("nothing", UNCHANGED)):
                nothing = one.rolled_back.replace(UNCHANGED, "nothing")
                one.rolled_back = f"{nothing}; what was fetched stays: {'; '.join(how.fetched)}"
        raise


def is_absent(fact: object) -> bool:
    """Whether a thing is not there, as opposed to could not be read."""
    return isinstance(fact, Missing) and fact.kind == "absent"


def fetch_missing(wanted: Wanted, seens: Mapping[str, Seen], how: How, session: Session) -> bool:
    """Fetch what is missing, after asking; whether anything was. Raises RefusedError: not agreed, or a dry run."""
    screen, image = session.screen, wanted.recipe.image
    images = [name for name in wanted.names if is_absent(seens[name].image)]
    lacking = {
        model: {name: seens[name] for name in wanted.names if is_absent(seens[name].copies[number])}
        for number, model in enumerate(wanted.models)
    }
    if images:
        there = ", ".join(images)
        missing = f"image {image} is not on {there}"
        how.refuse_unasked(missing, session)
        how.agree(f"{missing}: pull it there", screen)
        for name in images:
            session.guard.note(name, f"docker pull {image}")
        with screen.waiting(f"docker pull {image} on {there}") as line:
            remedy = "see that the image's name is right, and docker login where it is asked"
            run_on(session, dict.fromkeys(images, docker_pull(image)), "pull the image", remedy, line.beside)
        how.fetched.append(f"image {image} on {there}")
    for model, hosts in lacking.items():
        if hosts:
            fetch_model(model, image, hosts, how, session)
    return bool(images or any(lacking.values()))


def fetch_model(model: Model, image: str, seens: Mapping[str, Seen], how: How, session: Session) -> None:
    """Say the bytes, ask, download on each of the hosts seen; the hub token lies there only meanwhile.

    In a directory of its own among the deployments: when we are killed, the next `up`, `pull` or `down` removes it.
    """
    fleet, screen, hosts = session.fleet, session.screen, list(seens)
    missing = f"model {model.id} is not on {', '.join(hosts)}"
    how.refuse_unasked(missing, session)
    folders = {name: f"{identity_of(seen).data_dir}/{HUB_TOKEN}" for name, seen in seens.items()}
    tokens = {name: f"{folder}/token" if how.token else "" for name, folder in folders.items()}
    there = hosts if how.token else []
    removals = {name: [Question(("rm", "-rf", "--", folders[name]), changes=True)] for name in there}
    try:
        fleet.keep_trying(lambda host: host.put(how.token.encode(), tokens[host.name], 0o600), there, screen.trouble)
        size, words = size_of(model, hosts[0], tokens[hosts[0]], session)
        refuse_full(model, size, seens)
        how.agree(f"{missing}: download {words} there", screen)
        download(model, image, seens, tokens, session)
        how.fetched.append(f"model {model.id} on {', '.join(hosts)}")
    finally:
        try:
            fleet.ask(removals)
        except InterruptedByUser:  # it comes just now
            fleet.cancel.renew()
            fleet.ask(removals)
            raise


def refuse_full(model: Model, size: float, seens: Mapping[str, Seen]) -> None:
    errors = []
    remedy = "docker system df; remove what is not needed, or set hf_home in the inventory"
    for host, seen in seens.items():
        for room in known(seen.disk) or ():  # what could not be read the checks have said
            if room.path == identity_of(seen).hf_home and room.free_bytes < size:
                free = f"{room.free_bytes / GIB:.1f} GiB available in {room.path}"
                what = f"not enough disk space for {model.id}: {size / GIB:.1f} GiB required, {free}"
                errors.append(RefusedError(what, code="disk-short", where=host, remedy=remedy))
    raise_all(errors)


def size_of(model: Model, host: str, token_file: str, session: Session) -> tuple[float, str]:
    """Bytes to download, 0 when unknown, and the same in words: one request to the hub, which also shows whether
    access is given. Raises RefusedError when it is not, or there is no such model."""
    question = weights.hub_question(model, token_file)
    found = weights.parse_hub(session.fleet.keep_asking({host: [question]}, session.screen.trouble)[host][0])
    if not isinstance(found, Missing):
        return found, f"{found / GIB:.1f} GiB"
    if found.kind == "refused":
        what = f"the hub refuses access to {model.id}: {found.why}"
        remedy = "accept the model's license on its page, and give a token with --hub-token-file"
        raise RefusedError(what, code="hub-access", where=host, remedy=remedy)
    if found.kind == "absent":
        what = f"{model.id} at revision {model.revision} not found on the hub: {found.why}"
        remedy = "check model and revision of the recipe; a private one needs --hub-token-file"
        raise RefusedError(what, code="model-not-found", where=host, remedy=remedy)
    size = None if model.dummy else model.weights_gib
    return (size * GIB, f"about {size:g} GiB by the recipe") if size else (0, "size unknown")


def download(model: Model, image: str, seens: Mapping[str, Seen], tokens: Mapping[str, str], session: Session) -> None:
    """The hub's own tool in a container of the image, as the user, so that the files belong to them."""
    folders: dict[str, list[Question]] = {}
    asked: dict[str, Question] = {}
    for name, token_file in tokens.items():
        session.guard.note(name, f"download {model.id}")
        identity = identity_of(seens[name])
        folders[name] = [Question(("mkdir", "-p", identity.hf_home), changes=True)]
        user = f"{identity.uid}:{identity.gid}"
        wanted = Download(model.id, model.revision, identity.hf_home, user, token_file, model.dummy)
        asked[name] = hub_download(image, wanted)
    session.fleet.keep_asking(folders, session.screen.trouble)
    with session.screen.waiting(f"download of {model.id} on {', '.join(tokens)}") as line:
        run_on(session, asked, "download the model", "run it again: it goes on where it stopped", line.beside)


def run_on(session: Session, asked: Mapping[str, Question], what: str, remedy: str, say: Callable[[str], None]) -> None:
    """Run one long change on each host; raise every host's own last words.

    One whose connection is lost is run again when the host answers: docker and the hub's tool continue where they were.
    """

    def fetch(host: Host) -> None:
        session.guard.require([host.name])
        while host.ask([docker_inspect(DOWNLOAD)])[0].exit == 0:  # the one of the lost connection still runs
            session.fleet.time.sleep(POLL_S)
        [answer] = host.ask([asked[host.name]])
        if answer.exit != 0:
            failed = f"could not {what}: {why_failed(answer)}"
            raise ClusterError(failed, code="fetch-failed", where=host.name, remedy=remedy)

    try:
        session.fleet.keep_trying(fetch, tuple(asked), say)
    except ClusterError as error:
        for one in error.errors:
            one.rolled_back = "nothing was started"  # what was fetched in part stays
        raise
