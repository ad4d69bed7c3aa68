"""Commands that carry a log elsewhere, byte for byte: into a file, and from it into another log.

Read in this order: `records` (what a file holds, and how it may be broken); `binary_file` and
`json_lines`, the two formats; `survey` (what a file holds, read through); `sources` (a cluster, a
stopped member's directory), `export_file` and `export`; then `importer` and `import_file`. `backup` and
`restore` carry a log's segments instead.
"""
