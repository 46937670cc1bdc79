"""The `vllm` of the image cluster-lab/vllm:quick: answers at once, with real Ray and real processes but no model.

It prints that it is simulated. Runs in the lab's containers with the engine's Python; nothing else imports it.
"""
