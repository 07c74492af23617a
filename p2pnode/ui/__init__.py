"""What the owner of a node sees and types: events, their sentences, the terminal prompt.

May import: errors, protocol.text. Knows nothing of the network or of training.
"""
