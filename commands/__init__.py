"""The commands of the command line: parse, call, print. `cli.py` puts them together."""
