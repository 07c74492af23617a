"""Where text comes from: files read by ranges, over HTTP or through fsspec, with patience.

May import: limits, errors. Everything here blocks; it is called from threads, never from a loop.
"""
