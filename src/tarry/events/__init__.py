"""Events for other programs: a CloudEvent about each step of each retry, published and kept in a stream."""
