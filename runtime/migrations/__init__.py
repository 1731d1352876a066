"""Numbered SQL: `NNNN_name.sql` brings a store from schema NNNN-1 to NNNN. A released file never changes."""
