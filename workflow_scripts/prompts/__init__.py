"""Shards become one prompt manifest, and the manifest becomes chunks."""
