"""Which detectors a sum is made of where nobody says: chosen by stand-ins for OOD data."""
