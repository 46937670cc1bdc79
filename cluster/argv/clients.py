"""Words that point people's programs at an endpoint: Claude Code, OpenAI's SDKs, Open WebUI. Never the value of a key.

Sources, looked up in November 2026: code.claude.com/docs/en/env-vars; docs.vllm.ai, serving/integrations/claude_code
and deployment/frameworks/open-webui; the README of openai-python.
"""

from __future__ import annotations

import json
import shlex

from cluster.config.secrets import API_KEY

NO_KEY = "none"
"""In place of a key where the server asks for none: the programs want a value."""
CLAUDE_CODE, OPENAI, OPEN_WEBUI = "Claude Code", "OpenAI SDKs", "Open WebUI"
OPEN_WEBUI_IMAGE = "ghcr.io/open-webui/open-webui:main"


def client_words(address: str, model: str, *, key: bool) -> dict[str, tuple[str, ...]]:
    """By program, the lines to type in a shell. `address` is the server's (http://host:port), `model` its served name;
    with `key` the server asks for one, which is in the shell's $VLLM_API_KEY."""
    name, token = shlex.quote(model), f'"${API_KEY}"' if key else NO_KEY
    claude = {
        "ANTHROPIC_BASE_URL": address,  # without /v1, which Claude Code adds
        "ANTHROPIC_AUTH_TOKEN": token,
        "ANTHROPIC_MODEL": name,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": name,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": name,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": name,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    openai = {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": token}
    asked = f'model={json.dumps(model)}, messages=[{{"role": "user", "content": "Hello"}}]'
    python = f"from openai import OpenAI; print(OpenAI().chat.completions.create({asked}).choices[0].message.content)"
    webui = f"-e OPENAI_API_BASE_URL={address}/v1 -e OPENAI_API_KEY={token}"
    volume = "-v open-webui:/app/backend/data"
    return {
        CLAUDE_CODE: (*_exports(claude), "claude"),
        OPENAI: (*_exports(openai), f"python3 -c {shlex.quote(python)}"),
        OPEN_WEBUI: (f"docker run -d -p 3000:8080 --name open-webui {volume} {webui} {OPEN_WEBUI_IMAGE}",),
    }


def _exports(values: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"export {name}={value}" for name, value in values.items())


def client_notes(model: str, *, tools: bool, bind: str, head: str) -> tuple[str, ...]:
    """What keeps these programs from working with a server, each with what to do."""
    local = bind in ("127.0.0.1", "::1", "localhost")
    notes = {
        f"the API listens on {bind} only: these lines work on {head}; --bind 0.0.0.0 opens it": local,
        f"Claude Code takes no model name with a slash ({model}): --set served_model_name=NAME gives another": "/"
        in model,
        "Claude Code needs tools, which the recipe has not: --set vllm.enable-auto-tool-choice=true --set "
        "vllm.tool-call-parser=NAME": not tools,
    }
    return tuple(note for note, holds in notes.items() if holds)
