"""Commands that run members."""
