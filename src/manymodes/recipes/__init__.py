"""Recipes: one short file per table and figure of the paper, and the demo. YAML, read by name."""
