"""What the history tells: counts by hour and day, unusual failure rates, and advice about policies."""
