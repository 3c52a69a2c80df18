"""Every prompt accounted for."""
