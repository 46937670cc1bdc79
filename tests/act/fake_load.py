"""The load client beside a simulated rank 0: it answers rounds as vLLM would, without a socket."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fake_host import FakeProcess
from spark import DATA

if TYPE_CHECKING:
    from rank_life import RankLife
    from spark import Machine

AUTO = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
USAGE = {"prompt_tokens": 9, "completion_tokens": 9}


class FakeLoad(FakeProcess):
    """far/load.py in the container of a head; `desk.says` is what the model answers to everything.

    With tools, and an engine that takes them, it calls the first one with `desk.arguments`.
    """

    def __init__(self, machine: Machine, argv: Sequence[str], stdin: bytes) -> None:
        super().__init__([json.dumps({"ready": True, "python": "3.12.3", "hostname": machine.name})])
        self.machine, self.container = machine, argv[3]
        self.target = json.loads(stdin.splitlines()[-1])

    def write(self, data: bytes) -> None:
        super().write(data)
        for line in data.splitlines():
            self.answer(json.loads(line))

    def answer(self, given: dict[str, Any]) -> None:
        """One round, each request answered at once."""
        sent = [self.reply(request["path"], request["body"]) for request in given["asks"]]
        for line in round_lines(given["id"], [(0.0, [(0.1, raw)] if raw else []) for raw in sent]):
            self.say(line)

    def reply(self, path: str, body: dict[str, Any] | None) -> bytes:
        """The bytes of an answer; none when no engine serves at the port."""
        port = int(self.target["urls"][0].rpartition(":")[2])
        life = next((one for one in self.machine.lives() if one.serving and int(one.flag("--port")) == port), None)
        if life is None or life.container.name != self.container:
            return b""
        if not self.allowed(life):
            return whole(401, {"error": {"message": "Unauthorized"}})
        model, limit = life.flag("--served-model-name"), int(life.flag("--max-model-len"))
        if body is None:
            return whole(200, {"data": [{"id": model, "owned_by": "vllm", "max_model_len": limit}]})
        if path.startswith("/v1/messages"):
            return whole(404, {"detail": "Not Found"})
        if body.get("tools") and "--enable-auto-tool-choice" not in life.engine:
            return whole(400, {"error": {"message": AUTO}})
        if body["max_tokens"] > limit:
            return whole(400, {"error": {"message": f"max_tokens {body['max_tokens']} is beyond {limit}"}})
        return self.speak(body)

    def speak(self, body: dict[str, Any]) -> bytes:
        """The first tool is called, once; everything else is answered with what the model says."""
        message: dict[str, Any] = {"role": "assistant", "content": self.machine.desk.says}
        if body.get("tools") and body["messages"][-1]["content"] != "Say hello.":
            function = {"name": body["tools"][0]["function"]["name"], "arguments": self.machine.desk.arguments}
            message |= {"content": None, "tool_calls": [{"index": 0, "id": "call_1", "function": function}]}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return (streamed if body["stream"] else in_one_piece)(body["model"], message, finish)

    def allowed(self, life: RankLife) -> bool:
        home = f"{DATA}/deployments/{life.container.labels['cluster.deployment']}"
        path = self.target["api_key_file"]
        key = self.machine.read(path.replace("/cluster", home, 1)).decode() if path else ""
        return key == life.secrets.get("VLLM_API_KEY", "")


def round_lines(name: str, answers: Sequence[tuple[float, Sequence[tuple[float, bytes]]]]) -> tuple[str, str]:
    """What far/load.py prints of a round: of each request when it was sent and its portions, none without a server."""
    portions = [(number, t, data) for number, (_, some) in enumerate(answers) for t, data in some]
    table = b"".join(struct.pack("<IdI", number, t, len(data)) for number, t, data in portions)
    packed = base64.b64encode(zlib.compress(table + b"".join(data for _, _, data in portions))).decode()
    how = [[t0, some[-1][0], "done", ""] if some else [t0, t0, "refused", "no server"] for t0, some in answers]
    document = {"id": name, "requests": how, "chunks": len(portions), "parts": 1, "client": {"lag_max_ms": 0.0}}
    return json.dumps(document), f"+{packed}"


def whole(status: int, document: dict[str, Any]) -> bytes:
    """An answer in one piece."""
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


def in_one_piece(model: str, message: dict[str, Any], finish: str) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return whole(200, {"model": model, "choices": [choice], "usage": USAGE})


def streamed(model: str, message: dict[str, Any], finish: str) -> bytes:
    deltas = ({"role": "assistant", "content": ""}, message | {"role": None}, {})
    rows: list[dict[str, Any]] = [
        {"model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    rows[-1]["choices"][0]["finish_reason"] = finish
    rows.append({"model": model, "choices": [], "usage": USAGE})
    body = b"".join(b"data: %s\n\n" % json.dumps(row).encode() for row in rows) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body
