"""Faults of servers that others met and reported, and what helps against them."""

from __future__ import annotations

from cluster.probe.case import Defect

ROUTER = "ask the server itself, not the router before it, with --base-url; then look at the router's fallbacks"
NEWER = "an image with vLLM 0.20 or later; in an older one the patched file, by the recipe's `mounts`"

NO_REASONING = Defect(
    "vLLM issue 38855",
    "the reasoning of answers that are not streamed is null, since the marks are stripped before the parser sees them",
    NEWER,
)
DOUBLED = Defect("vLLM issue 38910 (PR 38909)", "letters come twice in streamed tool arguments, `<<htmlhtml`", NEWER)
BROKEN_JSON = Defect("vLLM issue 38946", "streamed tool arguments are not JSON: Gemma 4's own marks are in them", NEWER)
LOOP_ENDS = Defect(
    "vLLM issue 39043",
    "agent loops that are not streamed end early, with the marks of tool calls in the text",
    "stream in agent loops, or try a newer build: its parsers were rewritten in PR 45588 (June 2026)",
)
ARGUMENTS_LOST = Defect(
    "vLLM issue 41967",
    "with a drafter the first of several streamed calls loses its arguments",
    "a newer build: its parsers were rewritten in PR 45588 (June 2026); or leave out speculative-config",
)
FAILOVER = Defect(
    "silent failover (write-up on MTP, May 2026)",
    "a router sends what the server refuses to another model, without a word",
    ROUTER,
)
