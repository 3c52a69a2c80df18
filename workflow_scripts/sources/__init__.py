"""Each dataset becomes one normalized shard of prompts.

readers     files to rows: which files a pattern names, one reader per format
json_rows   JSON lines and JSON arrays, plain, gzip or zstd
parquet_rows
shapes      a row to a conversation, one function per shape
tools       tool declarations and tool calls, as the chat API writes them
prompt_ids  what makes two prompts the same
shard       the files of a shard
normalize   the job
"""

# Raise it when the same files would give other prompts: shards of the old version are then no longer used.
NORMALIZER_VERSION = 1
