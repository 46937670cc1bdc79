"""Requests to the Hugging Face hub: the beginning of a file, or all of a small one.

Standard library: `huggingface_hub` 2.4 brings 12 packages and 29 MB for these requests, tries them once only, and does
not compare a file's size with its header.
"""

from __future__ import annotations

import time
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cluster import __version__
from cluster.errors import ClusterError, UnreachableError, UsageError

TIMEOUT_S = 10.0  # for a connection, and for each part of an answer
PAUSES_S = (0.5, 2.0, 0.0)
"""After each failure that may pass; the last one is raised."""
LONGEST = 100 << 20  # bytes that are read of anything
PASSING = (408, 429, 500, 502, 503, 504)
ELSEWHERE = "check the network, $HTTPS_PROXY and $HF_ENDPOINT; or --model-dir DIR, or --offline"


class Redirects(HTTPRedirectHandler):
    """Followed anywhere, but the token goes only to the server it was first sent to: files are on other hosts."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        new, token = super().redirect_request(req, fp, code, msg, headers, newurl), req.get_header("Authorization")
        if new and token and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            new.add_unredirected_header("Authorization", token)
        return new


class HubModel:
    """One model on a hub at `endpoint`; `token` may be empty. Raises UsageError for an endpoint that is no URL."""

    def __init__(self, model: str, revision: str, token: str, endpoint: str) -> None:
        self.model, self.revision, self.endpoint = model, revision, endpoint.rstrip("/")
        self._token, self._opener = token, build_opener(Redirects)
        try:
            parts = urlsplit(endpoint)
            self.host = parts.hostname if parts.scheme in ("http", "https") and "@" not in parts.netloc else None
        except ValueError:  # half an IPv6 address
            self.host = None
        if not self.host:
            what = "HF_ENDPOINT: expected a URL without user and password, e.g. https://huggingface.co"
            raise UsageError(what, code="url-invalid")
        if not (token.isascii() and token.isprintable()):
            raise UsageError("the hub token is no token: expected one line of ASCII", code="token-invalid")

    def about(self) -> bytes:
        """What the hub says of the model at the revision, as JSON: `sha`, `siblings`. Raises as `_get`."""
        return self._get(f"api/models/{quote(self.model)}/revision/{quote(self.revision, safe='')}", LONGEST)[0]

    def read(self, commit: str, name: str, count: int) -> tuple[bytes, int]:
        """The first `count` bytes of a file, and its size. Raises as `_get`."""
        return self._get(f"{quote(self.model)}/resolve/{quote(commit, safe='')}/{quote(name)}", count)

    def _get(self, path: str, count: int) -> tuple[bytes, int]:
        """Raises UsageError when there is no such model or revision, UnreachableError for all else.

        A server that ignores the range is read no further, either.
        """
        for pause in PAUSES_S:
            request = Request(f"{self.endpoint}/{path}", headers={"User-Agent": f"spark-cluster/{__version__}"})
            if count < LONGEST:
                request.add_header("Range", f"bytes=0-{count - 1}")
            if self._token:
                request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            try:
                with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                    data = answer.read(count)
                    whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
                    whole = whole or answer.headers.get("Content-Length", "")
                size = int(whole) if whole.isdecimal() else len(data)
                if len(data) >= min(count, size):
                    return data, size
                why = f"{len(data)} of {min(count, size)} bytes came"
            except HTTPError as error:
                if error.code == 416:  # of an empty file
                    return b"", 0
                if error.code not in PASSING:
                    raise self._refused(error) from None
                why = f"{error.code} {error.reason}"
            except (OSError, HTTPException) as error:
                why = str(getattr(error, "reason", error)) or type(error).__name__
            time.sleep(pause)
        what = f"{self.host} did not answer {len(PAUSES_S)} requests for {self.model}: {why}"
        raise UnreachableError(what, code="hub-unreachable", where=path, remedy=ELSEWHERE)

    def _refused(self, answer: HTTPError) -> ClusterError:
        """The error of an answer, by the hub's own code for it, else by its status."""
        kind, where = answer.headers.get("X-Error-Code", ""), self.host or ""
        said = answer.headers.get("X-Error-Message") or f"{answer.code} {answer.reason}"
        if kind == "GatedRepo":
            page = f"{self.endpoint}/{self.model}"
            remedy = f"accept the license at {page} with your account and export HF_TOKEN of it"
            what = f"access to {self.model} is gated: {said}"
            return UnreachableError(what, code="model-gated", where=where, remedy=remedy)
        if answer.code == 404 or kind == "RepoNotFound" or (answer.code == 401 and not self._token):
            what = f"{self.model} at revision {self.revision} not found on the hub: {said}"
            remedy = "check model and revision" + "; a private one needs HF_TOKEN" * (not self._token)
            return UsageError(what, code="model-not-found", where=where, remedy=remedy)
        if answer.code in (401, 403):
            what, remedy = f"the hub refuses access to {self.model}: {said}", "check HF_TOKEN and what it may read"
            return UnreachableError(what, code="hub-access", where=where, remedy=remedy)
        what = f"the hub's answer about {self.model} is of no use: {said}"
        return UnreachableError(what, code="hub-unreachable", where=where, remedy=ELSEWHERE)
