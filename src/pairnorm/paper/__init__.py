"""Every table and figure of the paper as data: what to run, what the paper reported, how to draw it."""
