"""Chunks of prompts become chunks of completions."""
