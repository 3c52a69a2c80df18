"""A stand-in for SGLang: its API as version 0.5.23 answers it, fast, with faults that tests switch on."""
