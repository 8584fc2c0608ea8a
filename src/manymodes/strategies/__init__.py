"""The strategies: one file each, by name in `registry.py`."""
