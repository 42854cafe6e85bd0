"""One module for each command with more than a few lines; ``pairnorm.cli`` registers them."""
