"""Ask the server on this host: is it healthy, what does it serve, how long is its queue, and one real completion.

Given {"url": "http://127.0.0.1:8000", "model": "name", "key_file": "", "ask": true, "tokens": 24, "timeout_s": 300};
the API key is read from the private file, so it is no word of a command line. Prints
{"health": 200, "models": ["name"], "counters": "vllm:num_requests_running 0.0\\n…",
 "status": 200, "text": " Paris", "tokens": 16, "seconds": 0.4, "error": ""}
with status 0 where no answer came (the error says why), and the second line only when it was asked for.
"""

import http.client
import json
import re
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

PROMPT = "The capital of France is"
LOOK_S = 5.0
COUNTERS = "num_requests_running|num_requests_waiting|generation_tokens|prompt_tokens|kv_cache_usage_perc"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is not on the way to this host


def call(url: str, headers: dict[str, str], timeout_s: float, body: Any = None) -> tuple[int, str]:
    """Status and text of one request; status 0 and the reason when there was no answer, or none that is HTTP."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {**headers, "Content-Type": "application/json"})
    try:
        try:
            answer: Any = opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.read(4 << 20).decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"


def complete(url: str, headers: dict[str, str], timeout_s: float, ask: dict[str, Any]) -> dict[str, Any]:
    """One completion; as a chat when the first way is refused or gives no text (a chat model may end at once)."""
    chat = [{"role": "user", "content": f"Finish this sentence: {PROMPT}"}]
    best: dict[str, Any] = {}
    for way, body in (("completions", {"prompt": PROMPT}), ("chat/completions", {"messages": chat})):
        start = time.monotonic()
        status, answer = call(f"{url}/v1/{way}", headers, timeout_s, ask | body)
        found: dict[str, Any] = {
            "status": status,
            "seconds": round(time.monotonic() - start, 3),
            "text": "",
            "tokens": 0,
        }
        try:
            document = json.loads(answer) if status == 200 else {}
            said = document["choices"][0].get("message") or document["choices"][0]
            texts = (said.get(key) for key in ("text", "content", "reasoning_content", "reasoning"))
            tokens = (document.get("usage") or {}).get("completion_tokens") or 0
            found |= {"text": next(filter(None, texts), ""), "tokens": tokens, "error": ""}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            found["error"] = answer.strip()[:1000]
        if not best or status == 200:
            best = found
        if found["text"].strip() or status == 0:  # no answer in time: the other way would have to wait as long
            break
    return best


def main() -> None:
    given = json.loads(sys.argv[1])
    key_file = given.get("key_file")
    headers = {"Authorization": f"Bearer {Path(key_file).expanduser().read_text().strip()}"} if key_file else {}
    url, timeout_s = given["url"].rstrip("/"), float(given.get("timeout_s", 60))
    look_s = min(LOOK_S, timeout_s)
    found: dict[str, Any] = {"health": call(f"{url}/health", headers, look_s)[0], "models": [], "counters": ""}
    if found["health"]:
        models = call(f"{url}/v1/models", headers, look_s)[1]
        with suppress(ValueError, KeyError, TypeError):  # another program answers, or the API key is another
            found["models"] = [str(model["id"]) for model in json.loads(models)["data"]]
        metrics = call(f"{url}/metrics", headers, look_s)[1]
        lines = re.findall(rf"^vllm:(?:{COUNTERS})(?:_total)?(?:{{[^}}]*}})? \S+$", metrics, re.M)
        found["counters"] = "\n".join(lines)
    if given.get("ask"):
        ask = {"model": given["model"], "max_tokens": given["tokens"], "temperature": 0}
        found |= complete(url, headers, timeout_s, ask)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
