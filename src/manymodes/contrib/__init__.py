"""Learners in the tools people already work with: the Hugging Face hub, Avalanche."""
