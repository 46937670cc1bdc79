print("quick vllm (simulated)")
