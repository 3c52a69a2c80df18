"""Completions become token-exact training shards."""
