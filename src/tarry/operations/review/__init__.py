"""Review: browse the messages that wait for an operator's decision, and redrive, discard or export them.

Listing, filtering and grouping use the store's record of what is in review. The queue is authoritative: a message is
redriven only after a queue scan has received it, and before it is acknowledged.
"""
