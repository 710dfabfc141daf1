"""How prdp is started: arguments in, exit code out."""
