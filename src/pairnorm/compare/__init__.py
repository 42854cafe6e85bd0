"""Our methods beside those of others, under the protocols of both."""
