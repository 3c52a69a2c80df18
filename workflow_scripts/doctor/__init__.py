"""What stands in a run's way, looked at before it begins: all of it at once, worst first, each with what to do.

findings     what a check finds, as text and as JSON
host         disk, inodes, open files, ports, clock
servers      GPUs, driver, toolkit, environment, or servers that run already
target       the model's files, tokenizer and template, and whether it fits on the GPUs
datasets     every source: there, ours to read, with its splits
store        the rights in the bucket
examine      which checks a run needs
"""
