"""Notices that look bad and are not, and the moments that a text reaches. Both come before every other rule."""

from __future__ import annotations

import re

from cluster.diagnosis.rule import Moment, Rule

NORMAL = (
    Rule(
        "tp-exceeds-local", "normal",
        r"Tensor parallel size \(\d+\) exceeds available GPUs",
        "printed on every good start over several one-GPU hosts; a fault only together with a wait for placement",
        source="vLLM source, ray_utils; NVIDIA/dgx-spark-playbooks#63",
    ),
    Rule(
        "tp-spread", "normal",
        r"tensor_parallel_size=\d+ is bigger than a reserved number",
        "normal where every host has one GPU",
        source="foundation-model-stack/fastsafetensors#36",
    ),
    Rule(
        "no-gpudirect", "normal",
        r"GPU Direct RDMA Disabled|dlvsym failed on \w*mlx5|GPUDirect RDMA.*not (available|supported)|nv_peer_mem"
        r"|nvidia.peermem.*not",
        "GB10 has no GPUDirect RDMA; RoCE is used all the same",
        source="marksunner/dgx-spark-guides",
    ),
    Rule(
        "no-gdrcopy", "normal",
        r"GDRCOPY lib wrapper|libgdrapi\.so|Failed to load gdrdrv"
        r"|NET/Plugin: (Could not find|Failed to find|No plugin)|Could not find: libnccl-net|TUNER/Plugin"
        r"|PROFILER/Plugin|ENV/Plugin|NET/Plugin ?: dlerror",
        "an optional plug-in of NCCL is not there",
        source="NCCL source",
    ),
    Rule(
        "ray-metrics-agent", "normal",
        r"Failed to establish connection to the (event\+)?metrics (and event )?(exporter )?agent"
        r"|metrics exporter agent|Failed to determine local IP via external connectivity",
        "Ray tells no metrics, or has no internet; serving does not need either",
        source="Ray 2.56 logs",
    ),
    Rule(
        "cx7-power-notice", "normal",
        r"Detected insufficient power on the PCIe slot",
        "the ConnectX of a Spark prints it at every start",
        source="DGX Spark dmesg",
    ),
    Rule(
        "quoted-hint", "normal",
        r"cause fd limit errors like",
        "advice, not an event",
        source="vLLM and Ray sources",
    ),
    Rule(
        "weights-not-on-hub", "normal",
        r"Error retrieving safetensors",
        "vLLM asks the hub about the weights first; a local or offline model is then read all the same",
        source="vLLM source, transformers_utils",
    ),
    Rule(
        "no-ipv6-name", "normal",
        r"IPv6 network addresses of .*cannot be retrieved",
        "PyTorch tries IPv6 first and then IPv4",
        source="PyTorch source, socket.cpp",
    ),
    Rule(
        "pip-resolver", "normal",
        r"ERROR: pip's dependency resolver does not currently",
        "pip's remark about packages that nobody uses here",
        source="pip",
    ),
    Rule(
        "capability-notice", "normal",
        r"which is of cuda capability 12\.1|cuda capability supported by this version of PyTorch"
        r"|DeepGEMM is not supported|does not have native support for FP",
        "builds for sm_120 run on GB10's sm_121",
        source="PyTorch",
    ),
    Rule(
        "asked-to-end", "normal",
        r"asked to end \(SIG\w+\)|\b(SIGTERM|SIGINT) received|Received signal (2|15)\b"
        r"|Shutting down Ray distributed executor",
        "somebody ended it",
        source="cluster's rank program, vLLM",
    ),
)  # fmt: skip

MOMENTS: tuple[tuple[Moment, re.Pattern[str]], ...] = (
    ("started", re.compile(r"vLLM API server version|non-default args: |\"stage\": \"engine_started\"")),
    ("ready", re.compile(r"Application startup complete|Uvicorn running on|/v1/\w+[\w/]* HTTP/1\.1\" 4\d\d")),
    ("alive", re.compile(r"Avg prompt throughput: |/v1/\w+[\w/]* HTTP/1\.1\" 200")),
    (
        "placed",
        re.compile(
            r"Starting to load model|Loading safetensors checkpoint|Model loading took|assigned as DP rank"
            r"|distributed_init_method=|Memory profiling takes|Graph capturing finished|KV cache size: "
        ),
    ),
    ("joined", re.compile(r"Ray runtime started|Connected to Ray cluster|\"stage\": \"joined\"")),
)
"""How each moment shows."""
