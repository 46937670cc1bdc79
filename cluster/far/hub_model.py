"""Ask the hub for a model's file sizes: one request, which also tells whether access is given.

First word = JSON {"model", "revision", "token_file", "leave_out": endings of files that do not count}; `token_file` is
a private file on this host, or empty.
Prints {"bytes": n} or {"error": text, "status": HTTP status or 0}. $HF_ENDPOINT is honoured as the hub's tools do.
"""
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request


def main():
    given = json.loads(sys.argv[1])
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    revision = urllib.parse.quote(given["revision"], safe="")
    request = urllib.request.Request(f"{endpoint}/api/models/{given['model']}/revision/{revision}?blobs=true")
    if given["token_file"]:
        with open(given["token_file"]) as file:
            request.add_header("Authorization", f"Bearer {file.read().strip()}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            told = json.loads(answer.read(16 << 20))
        if told.get("gated") and not given["token_file"]:
            return {"error": f"the model is gated ({told['gated']}) and no token was given", "status": 401}
        rows, leave_out = told.get("siblings", []), tuple(given["leave_out"])
        return {"bytes": sum(row.get("size") or 0 for row in rows if not row.get("rfilename", "").endswith(leave_out))}
    except urllib.error.HTTPError as error:
        words = error.headers.get("X-Error-Message") or error.reason
        return {"error": str(words), "status": error.code}
    except (OSError, ValueError) as error:
        return {"error": str(getattr(error, "reason", error)), "status": 0}


print(json.dumps(main()))
