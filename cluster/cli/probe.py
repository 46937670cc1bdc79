"""`cluster probe`: does what runs (or --base-url) behave: tools, text, reasoning, pictures, the transport."""

from __future__ import annotations

import argparse
from contextlib import closing

from cluster.bench.endpoint import Engine, ask_loaded, engine_warnings, find_engine, find_model, with_engine
from cluster.bench.loader import Progress
from cluster.bench.target import ServerOptions, serving
from cluster.deploy.session import Connect
from cluster.errors import ClusterError, ExitCode, InterruptedByUser
from cluster.hosts.connect import connect
from cluster.probe.ask import Case, CaseResult, probed_server
from cluster.probe.cases import RANDOM, Probed, choose, run_probe
from cluster.screen import Screen, WaitLine


def run(args: argparse.Namespace, screen: Screen, connect: Connect = connect) -> ExitCode:
    """Carry out `cluster probe`; 4 when the server got something wrong, 1 when it served nothing."""
    cases = choose(args.only, quick=args.quick, full=args.full)
    with serving(ServerOptions.of(args), connect, "probe") as at:
        served, engine = find_model(at.loader, args.model or at.server.model, at.server.url), None
        if at.deployment is None:
            engine = find_engine(at.loader, served)
            served = with_engine(served, engine)
        if at.deployment and not args.recipe_option:
            spec = at.deployment.spec
            server = probed_server(served, spec["recipe"], spec.get("words", ()))
        else:
            server = probed_server(served, at.recipe.model_dump(mode="json") if at.recipe else None)
        warn_of(engine, server.model, screen)
        screen.line(f"{server.model}, asked from {at.loader.where}: {len(cases)} case{'s' if len(cases) != 1 else ''}")
        probed, shown = Probed(server), Lines(screen)
        if screen.interactive:
            at.loader.on_progress = shown.progress
        try:
            with closing(shown):
                run_probe(at.loader, probed, cases, show=shown.case)
        except (KeyboardInterrupt, InterruptedByUser):
            screen.warn("interrupted")
            return finish(probed, engine, screen, ExitCode.INTERRUPTED)
        except ClusterError:
            summarize(probed, screen)
            raise
        if engine and engine.name == "ollama" and engine.model_bytes is None:
            engine = ask_loaded(at.loader, served, engine)
            warn_of(engine, server.model, screen)
    wrong = ExitCode.REFUSED if probed.failed or probed.gone else ExitCode.DONE
    return finish(probed, engine, screen, ExitCode.FAILED if probed.gone and not probed.count("pass") else wrong)


def warn_of(engine: Engine | None, model: str, screen: Screen) -> None:
    """What must be known of a server before its answers: a model split over CPU and GPU, a router."""
    for line in engine_warnings(engine.document(), model) if engine else ():
        screen.warn(line)


def finish(probed: Probed, engine: Engine | None, screen: Screen, code: ExitCode) -> ExitCode:
    summarize(probed, screen)
    screen.document(probed.document() | ({"engine": engine.document()} if engine else {}))
    return code


class Lines:
    """What is shown while cases are asked."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._waiting: WaitLine | None = None
        self._title = self._group = ""

    def case(self, case: Case, result: CaseResult | None) -> None:
        """A case begins, or what came of it; what random weights are not asked is in the summary."""
        self.close()
        if result is None:
            self._title = f"{case.id}: {case.title}"
            self._waiting = self._screen.waiting(self._title) if self._screen.interactive else None
        elif result.verdict.why != RANDOM:
            if case.group != self._group:
                self._screen.line(case.group)
            self._group = case.group
            for line, style in result.lines():
                self._screen.text(line, " " * 10, style)

    def progress(self, far: Progress) -> None:
        if self._waiting:
            self._waiting.update(f"{self._title}: {far.chunks} chunks, {far.seconds:.0f} s")

    def close(self) -> None:
        if self._waiting:
            self._waiting.stop()
            self._waiting = None


def summarize(probed: Probed, screen: Screen) -> None:
    if score := probed.score():
        cut = f" ({score['cut_off']} cut off)" if score["cut_off"] else ""
        tokens = f" and {score['tokens_each']:,} tokens" if score["tokens_each"] else ""
        solved = f"solved {score['right']} of {score['of']} problems{cut}"
        screen.line(f"{solved}; {score['seconds_each']:.1f} s{tokens} each")
    if silent := [one.case.id for one in probed.results if one.verdict.why == RANDOM]:
        screen.text(f"not applicable, {RANDOM}: {', '.join(silent)}", "  ")
    if probed.refused:
        screen.warn(f"fields refused by the server and left out: {', '.join(probed.refused)}")
    if probed.gone:
        screen.warn(f"the server no longer answers ({probed.gone}); run cluster logs --explain")
    if probed.left:
        screen.warn(f"not asked: {', '.join(probed.left)}")
    failed, skipped = len(probed.failed), probed.count("not applicable")
    if not probed.results or len(probed.scored) < len(probed.results):
        text = f"{probed.count('pass')} passed, {failed} failed, {skipped} not applicable"
        (screen.line if failed else screen.good)(text)
