"""make bench: tarry side by side with what people would pick instead."""
