"""Commands that carry a log elsewhere, byte for byte: into a file, and from it into another log; and
backups."""
