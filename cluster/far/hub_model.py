"""Ask the hub for a model's file sizes: one request, which also shows whether access is given.

First word = JSON {"model", "revision", "token_file", "leave_out": endings of files that do not count}; `token_file` is
a private file on this host, or empty.
Prints {"bytes": n} or {"error": text, "status": HTTP status or 0}. $HF_ENDPOINT is honoured as the hub's tools do.
"""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from cluster.far.prelude import Json, emit, given


def main(wanted: dict[str, Json]) -> dict[str, Json]:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    revision = urllib.parse.quote(wanted["revision"], safe="")
    request = urllib.request.Request(f"{endpoint}/api/models/{wanted['model']}/revision/{revision}?blobs=true")
    if wanted["token_file"]:
        request.add_header("Authorization", f"Bearer {Path(wanted['token_file']).read_text().strip()}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            model = json.loads(answer.read(16 << 20))
        if model.get("gated") and not wanted["token_file"]:
            return {"error": f"the model is gated ({model['gated']}) and no token was given", "status": 401}
        rows, leave_out = model.get("siblings", []), tuple(wanted["leave_out"])
        return {"bytes": sum(row.get("size") or 0 for row in rows if not row.get("rfilename", "").endswith(leave_out))}
    except urllib.error.HTTPError as error:
        return {"error": str(error.headers.get("X-Error-Message") or error.reason), "status": error.code}
    except (OSError, ValueError) as error:
        return {"error": str(getattr(error, "reason", error)), "status": 0}


if __name__ == "__main__":
    emit(main(given()))
