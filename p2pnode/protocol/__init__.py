"""Decisions without I/O: cores that take (event, now) and return effects, and what they say.

Three groups: the step protocol (core and what it composes), admission (admit, roster, envelope,
code, identity), and the forms on the wire (messages, frames, lobby). May import: config, limits,
errors, and `signaling.messages`.
"""
