"""The programs behind the contenders. Some run in an environment of their own, so they import nothing of tarry."""
