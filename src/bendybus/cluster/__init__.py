"""Several brokers for one namespace: which broker owns which partition, and how the others reach it.

DESIGN.md has the reasons, and the next steps.
"""
