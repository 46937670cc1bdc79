"""Simulated Sparks on this machine: real OpenSSH, Docker, Ray and vLLM; only GPU, RDMA and memory readings are made up.

Imported by `cluster.cli.lab` only. The rest of the product must not know that a lab exists.
"""
