"""Several brokers for one namespace: who owns which partition, and how the others reach it.

The reasons for what is here, and what is to come: DESIGN.md.
"""
