"""Text for members that cannot reach its source: what the operator named, by ranges, bounded.

Imports nothing of ours but `limits`, `messages` and `throttle`.
"""
