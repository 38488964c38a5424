"""A corpus of cheats and of honest submissions, run as real races: see `python -m benchmarks.cheats --help`."""
