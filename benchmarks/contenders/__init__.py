"""What people would pick instead of tarry, each behind the same small protocol."""
