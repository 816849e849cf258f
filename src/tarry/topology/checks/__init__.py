"""The checks of `tarry topology verify`: pure functions that compare the expected with the live state."""
