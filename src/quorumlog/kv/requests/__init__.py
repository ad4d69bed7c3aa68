"""What the key-value store is asked, and what it answers: both ends say the same.

Read in this order: `operations` (what is a command or a question; a transaction writes no key twice),
`limits` (what makes one valid), `answers` (what comes back), `messages` (either on a connection).
"""
