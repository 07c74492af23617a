"""The rendezvous server: introduces nodes of a room to each other and answers STUN.

`messages` is the one module that nodes share with it. Imports nothing of p2pnode.
"""
