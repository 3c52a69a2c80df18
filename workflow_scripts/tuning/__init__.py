"""The servers' flags, measured on the run's own prompts before (or in the midst of) the run.

candidates   which flags are tried
sample       prompts of the run, by source and length
measure      one candidate's speed under its full load, by the engine's own client
steady       when a server's work is steady, and when it was looked at long enough
answers      greedy answers, compared across candidates
decide       who is slower, who is measured again, who wins
report       tuning.json and the table
winner       the winner's flags, laid over servers.args
tune         all of it, on as many servers as there are
"""
