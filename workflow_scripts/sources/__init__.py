"""Each dataset becomes one normalized shard of prompts.

catalogue     the known datasets, and what `use` in a config stands for
hub           what a repository of the hub holds
layout        which of its files are a config's and a split's
transfer      bytes of a file of it, tried again
download      a file of it, on this machine
remote        parts of a file of it
readers       which files a pattern names; a file's rows
json_rows     JSON lines and JSON arrays, plain, gzip or zstd
parquet_rows  Parquet
shapes        a row to a conversation, by shape
recognition   which shape a source's first rows have
tools         tool declarations and tool calls, as the chat API writes them
tool_declarations  tools inside a system text
tool_text     calls, results and thinking inside text
rejects       what is said of a row that is no prompt
prompt_ids    what makes two prompts the same
sampling      which rows an even sample has
reading       one pass over a source: prompts and rejects
conversion    a batch of rows: prompts and rejects
workers       processes that convert batches
reading       one pass over a source
tally         what is counted
shard         the files of a shard
normalize     the job
"""

# Raise it when the same files would give other prompts: shards of the old version are then no longer used.
NORMALIZER_VERSION = 4
