"""Any number of rows, here or on Ray: guards over folders and tables, fits and banks in shares; only ``cli`` imports it."""
