"""Each dataset becomes one normalized shard of prompts."""
