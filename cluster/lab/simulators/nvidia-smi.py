#!/usr/bin/python3
print("nvidia-smi (simulated)")
