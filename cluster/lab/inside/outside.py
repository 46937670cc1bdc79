"""What is outside of a lab's hosts: a registry to pull the lab's images from, a hub to download the toy models from.

    python3 outside.py REGISTRY MODELS         (started by daemon.py in the switch's network; ends with it)

Registry (port 5000, read-only, https://distribution.github.io/distribution/spec/api): what `images.py` laid out.
Hub (port 8080): the routes of huggingface.co that `hf download` asks, for the models in the folder MODELS (as they
are in a Hugging Face cache), and one of them a second time under a gated name, which requires a token.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

REGISTRY_PORT, HUB_PORT = 5000, 8080
GATED, BEHIND = "cluster-lab/gated-gemma-4", "cluster-lab/tiny-gemma-4"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Answering(BaseHTTPRequestHandler):
    """A GET and a HEAD that differ in the body only."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None: ...

    def do_HEAD(self) -> None:
        self.do_GET()

    def give(self, status: int, body: bytes, **headers: str) -> None:
        """A small answer; `_` in a header's name is `-`."""
        self.give_stream(status, io.BytesIO(body), len(body), **headers)

    def give_file(self, path: Path, **headers: str) -> None:
        """A file, or its rest when a broken download is resumed (`Range: bytes=N-`)."""
        size, rest = path.stat().st_size, re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        with path.open("rb") as file:
            if rest:
                file.seek(begin := int(rest[1]))
                headers["Content_Range"] = f"bytes {begin}-{size - 1}/{size}"
                size -= begin
            self.give_stream(206 if rest else 200, file, size, **headers)

    def give_stream(self, status: int, body: BinaryIO, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(length), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            shutil.copyfileobj(body, self.wfile, 1 << 20)

    def log_message(self, format: str, *words: Any) -> None:
        """Quiet."""


class Registry(Answering):
    def do_GET(self) -> None:
        """/v2/, /v2/NAME/manifests/TAG-or-digest, /v2/NAME/blobs/DIGEST."""
        top = Path(sys.argv[1])
        wanted = re.fullmatch(r"/v2/([a-z0-9/-]+)/(manifests|blobs)/([A-Za-z0-9_.:-]+)", self.path.partition("?")[0])
        if self.path == "/v2/":
            self.give(200, b"{}", Content_Type="application/json")
            return
        path = top / wanted[2] / (wanted[3] if ":" in wanted[3] else f"{wanted[1]}/{wanted[3]}") if wanted else top
        if not wanted or not path.is_file():
            body = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "the lab's registry does not have it"}]}
            self.give(404, json.dumps(body).encode(), Content_Type="application/json")
        elif wanted[2] == "manifests":
            digest = path.resolve().name
            self.give(200, path.read_bytes(), Content_Type=MANIFEST, Docker_Content_Digest=digest)
        else:
            self.give_file(path, Content_Type="application/octet-stream", Docker_Content_Digest=wanted[3])


class Hub(Answering):
    """The few routes of the hub that a download asks."""

    def do_GET(self) -> None:
        """/api/models/ID…, /ID/resolve/REVISION/FILE."""
        path = self.path.partition("?")[0]
        named = re.match(r"(?:/api/models)?/([\w.-]+/[\w.-]+)", path)
        model = named[1] if named else ""
        repository = Path(sys.argv[2], "models--" + (BEHIND if model == GATED else model).replace("/", "--"))
        if not repository.is_dir():
            self.refuse(404, "RepoNotFound", "Repository not found")
            return
        commit = (repository / "refs/main").read_text().strip()
        snapshot = repository / "snapshots" / commit
        if model == GATED and "Bearer " not in self.headers.get("Authorization", ""):
            self.refuse(401, "GatedRepo", f"Access to model {GATED} is restricted. Please log in.")
        elif (asked := re.search(r"/(?:revision|tree|resolve)/([^/]+)", path)) and asked[1] not in ("main", commit):
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
        elif "/resolve/" in path:  # with the headers that the cache is laid out from
            file = snapshot / path.rpartition("/")[2]
            if file.exists():
                etag = f'"{file.resolve().name}"'
                self.give_file(file, ETag=etag, X_Repo_Commit=commit, Accept_Ranges="bytes")
            else:
                self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            files = sorted(snapshot.iterdir())
            body = tree(files) if "/tree/" in path else about(model, commit, files)
            self.give(200, json.dumps(body).encode(), Content_Type="application/json", X_Repo_Commit=commit)

    def refuse(self, status: int, code: str, words: str) -> None:
        body = json.dumps({"error": words}).encode()
        self.give(status, body, Content_Type="application/json", X_Error_Code=code, X_Error_Message=words)


def about(model: str, commit: str, files: list[Path]) -> dict[str, Any]:
    """/api/models/ID."""
    siblings = [{"rfilename": file.name, "size": file.stat().st_size, "blobId": file.resolve().name} for file in files]
    known = {"private": False, "disabled": False, "downloads": 0, "likes": 0, "tags": ["simulated"]}
    gated = "auto" if model == GATED else False
    when = "2026-01-01T00:00:00.000Z"
    name = {"_id": commit[:24], "id": model, "modelId": model, "sha": commit, "lastModified": when, "createdAt": when}
    return {**name, **known, "gated": gated, "siblings": siblings}


def tree(files: list[Path]) -> list[dict[str, Any]]:
    """/api/models/ID/tree/REVISION."""
    return [{"type": "file", "oid": f.resolve().name, "size": f.stat().st_size, "path": f.name} for f in files]


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() == 1:
        return
    hub = ThreadingHTTPServer(("", HUB_PORT), Hub)
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    ThreadingHTTPServer(("", REGISTRY_PORT), Registry).serve_forever()


if __name__ == "__main__":
    main()
