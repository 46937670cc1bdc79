"""vLLM's own argument parser, asked in the lab's engine: one process, since each start imports all of vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PARSE = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what vLLM prints is no answer
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER as loaders
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
ServeSubcommand().subparser_init(parser.add_subparsers())
options = [option for action in parser._subparsers._group_actions[0].choices["serve"]._actions
           for option in action.option_strings]
for line in sys.stdin:
    try:
        parsed = [vars(parser.parse_args(words[1:])) for words in json.loads(line)]
        answer = {"parsed": parsed, "options": options, "loaders": list(loaders)}
    except SystemExit:  # the reason is printed
        answer = None
    print(json.dumps(answer, default=str), file=answers, flush=True)
os._exit(0)  # to take vLLM's modules down takes seconds
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the parser made of each argv, every option it knows, and the load formats, which it does not check."""

    arguments: list[dict[str, Any]]
    options: frozenset[str]
    loaders: frozenset[str]


@dataclass(frozen=True, slots=True)
class Parser:
    """The process, and the file of what it prints."""

    process: subprocess.Popen[str]
    printed: Path

    def parse(self, sent: Sequence[Sequence[str]]) -> Parsed:
        """Give each argv (`vllm serve …`) to the real parser, which takes all of them."""
        answer = self.ask(sent)
        assert answer is not None, self.printed.read_text()[-2000:]
        return Parsed(answer["parsed"], frozenset(answer["options"]), frozenset(answer["loaders"]))

    def ask(self, sent: Sequence[Sequence[str]]) -> Any:
        """The same; None when it refuses one."""
        asked, answers = self.process.stdin, self.process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps(sent) + "\n")
        asked.flush()
        return json.loads(answers.readline() or "null")


@contextmanager
def real_parser(folder: Path) -> Iterator[Parser]:
    """The process, until the end of the block; skips the test where the engine is not built."""
    engine = os.environ.get("CLUSTER_TEST_ENGINE", "")
    if not Path(engine, "bin/python3").exists():
        pytest.skip("the lab's engine is not built yet (cluster lab up), so the real vLLM's parser is not asked")
    words = [f"{engine}/bin/python3", "-c", PARSE]
    env = {**os.environ, "TMPDIR": str(folder)}  # torch leaves a folder in /tmp
    printed = folder / "printed"
    with printed.open("w") as stderr:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
        process = subprocess.Popen(words, text=True, env=env, **pipes)
    with process:  # closes stdin, which ends it
        yield Parser(process, printed)
