"""What a person decides about: looking into the review queue, and sending on, throwing away or exporting what is there.

The books say what is in review, and are what is listed, filtered and grouped. The queue is the judge: only a message
that is in our hand, taken from the queue and not yet acknowledged, is ever sent on.
"""
