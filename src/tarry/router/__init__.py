"""The router: processes batches of retry requests; start with pipeline.py."""
