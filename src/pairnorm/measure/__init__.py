"""How much a representation is smoothed: distances between its rows and columns, energies, ranks, and the Probe. Imports torch only."""
