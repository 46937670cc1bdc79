#!/usr/bin/python3
print("ibstat (simulated)")
