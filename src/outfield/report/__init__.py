"""Results to read: tables, figures and a page."""
