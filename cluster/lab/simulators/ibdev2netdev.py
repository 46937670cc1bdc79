#!/usr/bin/python3
print("ibdev2netdev (simulated)")
