"""A fuzzer of the public surface: odd inputs by the thousand, and oracles that know the right answer.

A *surface* is a function of a random source and an empty folder that puts one odd input to one part of the library. It may raise
nothing but an error of ours; where the library answers, the surface compares the answer with brute force or another way to it.
``tests/fuzz/test_fuzz.py`` runs a fixed part of it, ``make fuzz`` runs it for long.
"""
