"""How an image becomes what a network takes."""
