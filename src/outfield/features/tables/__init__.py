"""Tables: CSV and Parquet files, frames, and how their columns become features."""
