"""Mutation testing: small changes of the code, each of which some test should notice."""
