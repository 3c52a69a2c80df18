"""Environments, models, and the supervised servers that chunk jobs lease."""
