"""What a simulated machine answers to the programs of far/, in their own formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from far_program import run_over

from cluster.argv.question import Answer

if TYPE_CHECKING:
    from spark import Machine

GIB = 1 << 30
HOME = "/home/nvidia"
DATA = f"{HOME}/.local/share/cluster"
HUB = f"{HOME}/.cache/huggingface"
COMMIT = "c0ffee00" * 5
SMI = "NVIDIA GB10, 580.95.05, [N/A], [N/A], 12.34, 2418, 44, 0, 0x0000000000000001, [N/A]\n"


class Answers:
    """A part of Machine: one method a program, one a section."""

    def sections(self: Machine, names: Sequence[str]) -> dict[str, Any]:
        return {name: self.missing.get(name) or {"value": getattr(self, f"see_{name}")()} for name in names}

    def tell_look(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(given["sections"])

    tell_others = tell_look

    def tell_kept(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("paths") == [self.docker.root]:
            room = {"path": self.docker.root, "free_bytes": self.root_free_bytes}
            return {"disk": {"value": [{**room, "free_inodes": None, "device": 2}]}}
        return self.sections(given["sections"])

    def tell_links(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        return self.sections(["links"])

    def see_identity(self: Machine) -> dict[str, Any]:
        return {
            "product": self.product,
            "machine_id": self.see_machine(),
            "hostname": self.name,
            "kernel": "6.11.0-1016-nvidia",
            "arch": self.arch,
            "user": "nvidia",
            "uid": 1000,
            "gid": 1000,
            "groups": ["nvidia"] if self.docker.trouble else ["nvidia", "docker"],
            "path": "/usr/bin",
            "data_dir": DATA,
            "hf_home": HUB,
            "management_address": self.address,
            "sudo": self.sudo,
        }

    def see_clock(self: Machine) -> dict[str, Any]:
        return {"time_unix_s": self.desk.time() + self.ahead_s, "synchronised": True}

    def see_tenants(self: Machine) -> list[dict[str, Any]]:
        return self.tenants

    def see_firewall(self: Machine) -> str:
        return self.firewall

    def see_memory(self: Machine) -> str:
        available = self.available_bytes
        rows = {"MemTotal": self.total_bytes, "MemFree": available - self.cached_bytes, "MemAvailable": available}
        return "".join(f"{name}: {value // 1024} kB\n" for name, value in rows.items())

    def see_listening(self: Machine) -> list[dict[str, Any]]:
        return self.listeners()

    def see_processes(self: Machine) -> list[dict[str, Any]]:
        return [
            {"pid": pid, "name": name, "rss_bytes": GIB // 2 if on_gpu else held, "container": container}
            for pid, name, held, container, on_gpu in self.rows()
            if container
        ]

    def see_disk(self: Machine) -> list[dict[str, Any]]:
        room = {"free_bytes": self.free_bytes, "free_inodes": 1 << 20, "device": 1}
        return [{"path": path, **room} for path in (DATA, HUB, "/var/lib/docker")]

    def see_deployments(self: Machine) -> list[dict[str, Any]]:
        before = {name: self.files.get(f"{DATA}/deployments/{name}/before.json") for name in self.kept()}
        return [{"id": name, "before": json.loads(text[0]) if text else None} for name, text in before.items()]

    def see_lock(self: Machine) -> dict[str, Any]:
        holder = self.desk.hosts[self.name].lock_holder
        return {"held": holder is not None, **(holder or {})}

    def see_links(self: Machine) -> dict[str, Any]:
        return {
            "links": [port.link() for port in self.ports if port.hca],
            "netdevs": sorted((port.netdev_row() for port in self.ports), key=lambda row: row["name"]),
            "rdma_device": self.rdma_device,
        }

    def tell_gpu(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        fields = [names[0] for names in given["fields"]]
        code, said = self.smi or (0, SMI)
        rows = [(pid, name, held >> 20, container) for pid, name, held, container, on_gpu in self.rows() if on_gpu]
        apps = said if code else "".join(f"{pid}, {name}, {mib}\n" for pid, name, mib, _ in rows)
        containers = {str(pid): container for pid, _, _, container in rows}
        return {
            "gpu": {"value": {"fields": fields, "exit": code, "said": said}},
            "apps": {"value": {"exit": code, "said": apps, "containers": containers}},
        }

    def tell_containers(self: Machine, given: dict[str, Any]) -> Answer:
        return run_over(self.docker, "containers", given)

    def tell_ranks(self: Machine, given: dict[str, Any]) -> Answer:
        return run_over(self.docker, "ranks", given)

    def tell_weights(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        model, commit = given["model"], self.models.get(given["model"])
        if "weights" in self.missing:
            return {"weights": self.missing["weights"]}
        if commit is None:
            return {"weights": {"missing": f"{model} is not in {HUB}/hub", "kind": "absent"}}
        path = model if model.startswith("/") else f"{HUB}/hub/models--{model.replace('/', '--')}/snapshots/{commit}"
        there = [name for name in given["files"] if self.exists(f"{path}/{name}")]
        gone = [f"{name}: not there, and the recipe mounts it" for name in given["files"] if name not in there]
        value = {
            "model": model,
            "revision": given["revision"],
            "commit": "" if model.startswith("/") else commit,
            "path": path,
            "files": 5,
            "bytes": 60 * GIB,
            "listing": "1f" * 32,
            "problems": [*self.model_problems, *gone]
            + ["no weight files"] * bool(self.left_out.get(model) and not given["dummy"]),
            "hashes": {name: sha256(self.read(f"{path}/{name}")).hexdigest() for name in there},
        }
        return {"weights": {"value": value}}

    def tell_hub_model(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        token = self.read(given["token_file"]).decode() if given["token_file"] else ""
        if given["model"] not in self.desk.hub:
            return {"error": "Repository not found", "status": 404}
        if self.desk.hub_token and token != self.desk.hub_token:
            return {"error": "Access to model is restricted", "status": 401}
        return {"bytes": 1 * GIB if given.get("leave_out") else 59 * GIB}

    def tell_completion(self: Machine, given: dict[str, Any]) -> dict[str, Any]:
        port = int(given["url"].rpartition(":")[2])
        life = next((one for one in self.lives() if one.serving and int(one.flag("--port")) == port), None)
        if life is None:
            return {"health": 0, "models": [], "counters": ""}
        key = self.read(given["key_file"]).decode() if given["key_file"] else ""
        if key != life.secrets.get("VLLM_API_KEY", ""):
            return {"health": 200, "models": [], "counters": "", "status": 401, "error": "Unauthorized"}
        counters = "".join(f'vllm:{name}{{engine="0"}} {value:.1f}\n' for name, value in life.counts.items())
        found = {"health": 200, "models": [life.flag("--served-model-name")], "counters": counters}
        if given["ask"]:
            self.desk.move_bytes(life)
            status, error = self.desk.answers
            text, tokens = (self.desk.says, given["tokens"]) if status == 200 else ("", 0)
            found |= {"status": status, "text": text, "tokens": tokens, "seconds": 0.5, "error": error}
        return found
